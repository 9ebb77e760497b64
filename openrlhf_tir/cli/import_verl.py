"""import-verl: a bash script or a Hydra command line of verl -> a recipe that does what it did."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..config.integrations.bash_script import Command, Script
from ..config.integrations.rehearsal import rehearse
from ..config.integrations.verl_import import import_verl
from ..config.integrations.verl_overrides import read_overrides
from ..errors import ConfigError
from .exit_codes import NO
from .imports import (
    add_script_arguments,
    chosen_command,
    count_rows,
    first_rows,
    give_recipe,
    line_of,
    read_bash,
    recipe_text,
    say,
    say_differences,
    script_words,
    write_files_of,
)

EXAMPLES = """examples
  openrlhf-tir import-verl run_qwen2-7b.sh --out grpo.toml
      the recipe of a script; what differs is a comment in it and on the screen
  openrlhf-tir import-verl -- algorithm.adv_estimator=grpo data.train_files=train.parquet ...
      the same of the overrides alone
  openrlhf-tir import-verl --rehearse run_qwen2-7b.sh --run --actor.model_name_or_path TOY --data.prompt_dataset ROWS
      two short batches of it on this machine, without GPUs: does everything work together?
  openrlhf-tir import-verl run_qwen2-7b.sh --run --run-dir runs/mine
      make the recipe and start it: what follows --run are flags of `openrlhf-tir train`
The script is not run: variables, arrays, conditions and loops are read as bash would take them."""

_MODULE = re.compile(
    r"(?:.*[./])?(?P<name>main_\w+|\w+_main_(?:ppo|dapo)|fsdp_sft_trainer\w*|sft_trainer\w*|fully_async_main)(?:\.py)?"
)
OTHERS = {
    "sft": (
        "fine-tuning is `openrlhf-tir sft` here: --actor.model_name_or_path MODEL --sft.dataset FILE with the columns"
        " `messages`, or `prompt` and `response` (sft.input_key, sft.output_key), --actor.learning_rate, --sft.max_len"
        " (docs/sft.md)"
    ),
    "main_generation": "sampling from a model is `openrlhf-tir eval` here, which writes responses with their scores",
    "main_eval": "scoring is `openrlhf-tir eval` here",
    "main_ppo_split": "models on separate GPUs: see docs/scaling.md",
}
"""A program of verl's that trains nothing by RL -> what does its work here."""


@dataclass(frozen=True)
class Call:
    """A command of the script that starts one of verl's programs."""

    program: str
    words: tuple[str, ...]
    line: int

    @property
    def trains(self) -> bool:
        """Return True if it becomes a recipe."""
        return self.other is None

    @property
    def other(self) -> str | None:
        """What does the work of a program that is not RL training."""
        return next((why for name, why in OTHERS.items() if name in self.program.rpartition(".")[2]), None)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_script_arguments(parser, EXAMPLES, project="verl", behind="the overrides themselves")
    parser.usage = (
        "%(prog)s [--out FILE] [--number N] [--force] SCRIPT.sh [ARGUMENT...] [--run [FLAGS...]]\n"
        "       %(prog)s [--out FILE] -- OVERRIDES..."
    )


def run(args: argparse.Namespace) -> int:
    words = script_words(args)
    if not words:
        raise ConfigError(
            "Nothing to import. Give a script, openrlhf-tir import-verl SCRIPT.sh, or overrides:"
            " openrlhf-tir import-verl -- algorithm.adv_estimator=grpo ..."
        )
    calls = calls_of([Command(tuple(words), 0)])
    if calls or "=" in words[0] or words[0].startswith("-"):
        script, name, directories = Script(), "verl", [Path.cwd()]
        calls = calls or [Call("verl.trainer.main_ppo", tuple(words), 0)]
    else:
        path = Path(words[0])
        script, name = read_bash(path, words[1:], "import-verl"), path.stem
        here = path.absolute().parent
        directories = [Path.cwd(), here, *here.parents[:3]]
        calls = calls_of(script.commands)
    for note in script.notes:
        say(note)
    trains = [call for call in calls if call.trains]
    for call in calls:
        if not call.trains:
            say(f"{line_of(call.line)}{call.program}: {call.other}.")
    if not trains:
        if not calls:
            say(
                f"{' '.join(words)} starts no program of verl (python3 -m verl.trainer.main_ppo ...)."
                " If the script wants arguments, give them behind its name."
            )
        return NO
    chosen = chosen_command(args.number, trains)
    if args.out is None and args.run is not None:
        args.out = f"{name}.toml"
    chosen = replace(chosen, words=write_files_of(script, chosen.words, args.out, force=args.force))
    recipe = import_verl(
        read_overrides(chosen.words),
        program=chosen.program,
        name=name,
        directories=directories,
        sources_of=sources_of,
        rows_of=count_rows,
        change=rehearse if args.rehearse else None,
    )
    say(f"{recipe.summary}.")
    say_differences(recipe.draft, recipe.problems)
    if recipe.nothing:
        say(f"nothing is needed here for {', '.join(sorted(recipe.nothing))}")
    where = f"{name}, line {chosen.line}" if chosen.line else "a command line"
    text = recipe_text(
        f"From {where}: {chosen.program}. Made by `openrlhf-tir import-verl`.",
        recipe.draft,
        summary=recipe.summary,
        problems=recipe.problems,
        nothing=recipe.nothing,
    )
    return give_recipe(args, text)


def calls_of(commands: Sequence[Command]) -> list[Call]:
    """Return the commands that start one of verl's programs, each once, with the words behind the program."""
    found: dict[tuple[str, ...], Call] = {}
    for command in commands:
        for i, word in enumerate(command.words):
            match = _MODULE.fullmatch(word)
            if match is None or not _is_started(command.words[:i], word):
                continue
            program = word.removesuffix(".py").replace("/", ".")
            found.setdefault(command.words, Call(program, command.words[i + 1 :], command.line))
            break
    return [*found.values()]


def _is_started(before: Sequence[str], word: str) -> bool:
    """Return True if a word is what Python or a launcher starts, not another program's argument."""
    if not before:
        return "." in word or "/" in word
    launchers = ("python", "torchrun", "accelerate", "deepspeed", "ray", "uv")
    return any(Path(launcher).name.startswith(launchers) for launcher in before)


def sources_of(files: Sequence[str]) -> set[str]:
    """Return the `data_source`s of the first rows of some files, as far as the files are on this machine."""
    return {str(row["data_source"]) for row in first_rows(files) if row.get("data_source")}
