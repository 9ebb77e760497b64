"""import-trl: a Python script with a GRPOTrainer -> a recipe, and a file with its reward functions and tools."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..config.fine_tuning import RANKS_OF, violations
from ..config.integrations.recipe_draft import toml_of
from ..config.integrations.rehearsal import rehearse
from ..config.integrations.trl_import import TrlRecipe, import_trl
from ..config.integrations.trl_script import read_trl_script
from ..config.integrations.trl_sft import import_trl_sft
from ..config.problems import Problems
from ..config.settings import attempt
from .exit_codes import DONE
from .imports import (
    add_force,
    add_rehearse,
    count_rows,
    recipe_head,
    say,
    say_differences,
    say_how_to_rehearse,
    start,
    write,
)

EXAMPLES = """example
  openrlhf-tir import-trl train_grpo.py --out my_run/grpo.toml
      my_run/grpo.toml and beside it my_run/grpo_functions.py, with the script's reward functions and tools
  openrlhf-tir import-trl train_grpo.py --model_name_or_path MODEL --num_generations 8
      with the flags that the script is given
  openrlhf-tir import-trl --rehearse train_grpo.py --run --actor.model_name_or_path TOY
      two short batches of it on this machine, without GPUs: does everything work together?
  openrlhf-tir import-trl train_grpo.py --run --run-dir runs/mine
      make the recipe and start it: what follows --run are flags of `openrlhf-tir train`
The script is read, not run. What only a run can tell is said."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.usage = (
        "%(prog)s [--out FILE] [--gpus N] [--rehearse] [--force] SCRIPT.py [FLAGS OF THE SCRIPT...]\n"
        "                                [--run [FLAGS...]]"
    )
    parser.add_argument("--out", metavar="FILE", help="the recipe [NAME-OF-THE-SCRIPT.toml]")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="devices that the script ran on [1]")
    add_rehearse(parser)
    add_force(parser)
    parser.add_argument("script", metavar="SCRIPT.py", help="Python script that makes one of TRL's trainers")
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, help="flags that the script is given; behind --run, flags of the run"
    )


def run(args: argparse.Namespace) -> int:
    words = list(args.words)
    flags = None
    if "--run" in words:
        i = words.index("--run")
        flags = words[i + 1 :]
        del words[i:]
    if "--out" in words[:-1]:  # behind the script it is ours as well
        i = words.index("--out")
        args.out = words[i + 1]
        del words[i : i + 2]
    if "--force" in words:
        words.remove("--force")
        args.force = True
    path = Path(args.script)
    script, _ = read_trl_script(path, words)
    out = Path(args.out or f"{path.stem}.toml")
    functions = f"{out.stem}_functions.py"
    # Code is found beside the recipe that names it, data where a command is started: that may be elsewhere.
    rows = str((out.parent / f"{out.stem}_rows.jsonl").absolute())
    problems = Problems()
    if script.trainer == "SFTTrainer":
        command = "sft"
        recipe = import_trl_sft(script, path.stem, rows, args.gpus)
        if args.rehearse:
            rehearse(recipe.draft)
        attempt(None, recipe.draft.settings, problems, violations, ranks_of=RANKS_OF)
    else:
        command = "train"
        recipe = import_trl(script, path.stem, functions, rows, args.gpus, count_rows)
        if args.rehearse:
            rehearse(recipe.draft)
        beside = ("reward.name", "reward.weights", "env.file")  # files that are written below
        attempt(None, {k: v for k, v in recipe.draft.settings.items() if k not in beside}, problems)
    origin = f"{path.name}, line {script.line}: TRL's {script.trainer}"
    written = _write(out, recipe, origin, problems.lines, force=args.force)
    say_differences(recipe.draft, problems.lines)
    say(f"written in {out.parent}: {', '.join(written)}. Check it: openrlhf-tir {command} --recipe {out} --check-only")
    if not args.rehearse:
        say_how_to_rehearse()
    if flags is None:
        return DONE
    start(command, out, flags)


def _write(out: Path, recipe: TrlRecipe, origin: str, problems: list[str], *, force: bool) -> list[str]:
    """Write the recipe, its functions and its rows, and return the names of the files."""
    head = recipe_head(
        [f"From {origin}. Made by `openrlhf-tir import-trl`."],
        {
            "What differs from the script, or is left out:": recipe.draft.differences,
            "What has to be corrected before it runs:": problems,
            "What needs nothing here, or changes nothing that is trained:": [", ".join(sorted(recipe.nothing))]
            * bool(recipe.nothing),
        },
    )
    files = {out.name: toml_of(recipe.draft, head)}
    if recipe.code:
        docstring = f'"""Functions of {origin.partition(",")[0]}, for the recipe {out.name}."""\n\n'
        files[f"{out.stem}_functions.py"] = docstring + recipe.code
    if recipe.rows:
        files[f"{out.stem}_rows.jsonl"] = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in recipe.rows)
    write({out.parent / name: text for name, text in files.items()}, force=force)
    return [*files]
