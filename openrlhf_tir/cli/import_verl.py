"""import-verl: a bash script or a Hydra command line of verl -> a recipe that does what it did."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from ..config.integrations.bash_script import Command
from ..config.integrations.rehearsal import rehearse
from ..config.integrations.script_call import Call
from ..config.integrations.verl_import import import_verl
from ..config.integrations.verl_overrides import read_overrides
from .exit_codes import NO
from .imports import (
    Project,
    add_bash_arguments,
    count_rows,
    first_rows,
    give_recipe,
    recipe_text,
    training_call,
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


PROJECT = Project("verl", "import-verl", "overrides")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bash_arguments(parser, PROJECT, EXAMPLES)
    parser.usage = (
        "%(prog)s [--out FILE] [--number N] [--force] SCRIPT.sh [ARGUMENT...] [--run [FLAGS...]]\n"
        "       %(prog)s [--out FILE] -- OVERRIDES..."
    )


def run(args: argparse.Namespace) -> int:
    found = training_call(args, PROJECT, calls_of, _without_program)
    if found is None:
        return NO
    call, overrides, path = found
    name, directories = "verl", [Path.cwd()]
    if path is not None:
        here = path.absolute().parent
        name, directories = path.stem, [Path.cwd(), here, *here.parents[:3]]
    recipe = import_verl(
        read_overrides(overrides),
        program=call.program,
        name=name,
        directories=directories,
        sources_of=sources_of,
        rows_of=count_rows,
        change=rehearse if args.rehearse else None,
    )
    where = f"{name}, line {call.line}" if call.line else "a command line"
    text = recipe_text(f"From {where}: {call.program}. Made by `openrlhf-tir import-verl`.", recipe)
    return give_recipe(args, recipe, text)


def _without_program(words: list[str]) -> Call | None:
    """Return the trainer's call for words that are its overrides."""
    is_override = "=" in words[0] or words[0].startswith("-")
    return Call("verl.trainer.main_ppo", (), tuple(words), 0) if is_override else None


def calls_of(commands: Sequence[Command]) -> list[Call]:
    """Return the commands that start one of verl's programs, each once, with the words behind the program."""
    found: dict[tuple[str, ...], Call] = {}
    for command in commands:
        for i, word in enumerate(command.words):
            match = _MODULE.fullmatch(word)
            if match is None or not _is_started(command.words[:i], word):
                continue
            program = word.removesuffix(".py").replace("/", ".")
            sentence = next((f"{why}." for name, why in OTHERS.items() if name in program.rpartition(".")[2]), "")
            launcher, words = command.words[: i + 1], command.words[i + 1 :]
            found.setdefault(command.words, Call(program, launcher, words, command.line, sentence))
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
