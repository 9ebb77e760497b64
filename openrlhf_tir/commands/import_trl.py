"""import-trl: a Python script with a GRPOTrainer -> a recipe, and a file with its reward functions and tools."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..config.integrations.recipe_draft import toml_of
from ..config.integrations.trl_import import import_trl
from ..config.integrations.trl_script import read_trl_script
from ..config.problems import Problems
from ..config.settings import attempt
from ..exit_codes import DONE, NO
from .imports import recipe_head, say, say_differences, write

EXAMPLES = """example
  openrlhf-tir import-trl train_grpo.py --out my_run/grpo.toml
      my_run/grpo.toml and beside it my_run/grpo_functions.py, with the script's reward functions and tools
  openrlhf-tir import-trl train_grpo.py --model_name_or_path MODEL --num_generations 8
      with the flags that the script is given
The script is read, not run. What only a run can tell is said."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.usage = "%(prog)s [--out FILE] [--gpus N] SCRIPT.py [FLAGS OF THE SCRIPT...]"
    parser.add_argument("--out", metavar="FILE", help="the recipe [NAME-OF-THE-SCRIPT.toml]")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="devices that the script ran on [1]")
    parser.add_argument("script", metavar="SCRIPT.py", help="Python script that makes one of TRL's trainers")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="flags that the script is given")


def run(args: argparse.Namespace) -> int:
    words = list(args.words)
    if "--out" in words[:-1]:  # behind the script it is ours as well
        i = words.index("--out")
        args.out = words[i + 1]
        del words[i : i + 2]
    path = Path(args.script)
    script, _ = read_trl_script(path, words)
    if script.trainer == "SFTTrainer":
        say(
            "SFTTrainer: fine-tuning is `openrlhf-tir sft` here, with the same rows (messages, or prompt and"
            " completion): --actor.model_name_or_path, --sft.dataset, --sft.max_len, --actor.learning_rate."
        )
        return NO
    out = Path(args.out or f"{path.stem}.toml")
    functions, rows = f"{out.stem}_functions.py", f"{out.stem}_rows.jsonl"
    # Code is found beside the recipe that names it, data where a command is started: that may be elsewhere.
    recipe = import_trl(script, path.stem, functions, str((out.parent / rows).absolute()), args.gpus)
    draft = recipe.draft
    problems = Problems()
    beside = {
        key: value
        for key, value in draft.settings.items()
        if key not in ("reward.name", "reward.weights", "env.file")  # files that are written below
    }
    attempt(None, beside, problems)
    head = recipe_head(
        [f"From {path.name}, line {script.line}: TRL's {script.trainer}. Made by `openrlhf-tir import-trl`."],
        {
            "What differs from the script, or is left out:": draft.differences,
            "What has to be corrected before it runs:": problems.lines,
            "What needs nothing here, or changes nothing that is trained:": [", ".join(sorted(recipe.nothing))]
            * bool(recipe.nothing),
        },
    )
    write(out, toml_of(draft, head))
    if recipe.code:
        docstring = f'"""Functions of {path.name}, for the recipe {out.name}."""\n\n'
        write(out.parent / functions, docstring + recipe.code)
    if recipe.rows:
        write(out.parent / rows, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in recipe.rows))
    say_differences(draft, problems.lines)
    written = [out.name, *([functions] if recipe.code else []), *([rows] if recipe.rows else [])]
    say(f"written in {out.parent}: {', '.join(written)}. Check it: openrlhf-tir train --recipe {out} --check-only")
    return DONE
