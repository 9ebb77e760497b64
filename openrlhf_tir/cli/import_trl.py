"""import-trl: a Python script with a GRPOTrainer -> a recipe, and a file with its reward functions and tools."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path

from ..config.integrations.bash_script import Command, Script, read_script, readable
from ..config.integrations.recipe_draft import checked, checked_fine_tuning
from ..config.integrations.rehearsal import rehearse
from ..config.integrations.script_call import Call, Devices, devices_of_launcher, is_launched
from ..config.integrations.separate_gpus import FILES_OF_THE_USER, say_turns
from ..config.integrations.shared_settings import existing_path, written_text
from ..config.integrations.trl_import import import_trl
from ..config.integrations.trl_script import COMMANDS, TrlScript, read_trl_script, read_trl_text, text_of_command
from ..config.integrations.trl_sft import import_trl_sft
from ..errors import ConfigError
from .imports import (
    add_number,
    add_script_arguments,
    chosen_command,
    count_rows,
    first_rows,
    give_recipe,
    recipe_text,
    say,
    script_words,
)

_OF_TRL = re.compile(r"(?:.*/)?trl[./]scripts[./](grpo|rloo|sft)(?:\.py)?")
"""TRL's own scripts, which its commands start."""
_OF_ACCELERATE = ("num_processes", "num_machines", "accelerate_config")
"""Arguments that TRL's commands hand on to accelerate, from their YAML file as well."""
EXAMPLES = """example
  openrlhf-tir import-trl train_grpo.py --out my_run/grpo.toml
      my_run/grpo.toml and beside it my_run/grpo_functions.py, with the script's reward functions and tools
  openrlhf-tir import-trl launch.sh --out my_run/grpo.toml
      the same of what a bash script starts by accelerate, torchrun or `trl grpo`
  openrlhf-tir import-trl train_grpo.py --model_name_or_path MODEL --num_generations 8
      with the flags that the script is given
  openrlhf-tir import-trl --rehearse train_grpo.py --run --actor.model_name_or_path TOY
      two short batches of it on this machine, without GPUs: does everything work together?
  openrlhf-tir import-trl train_grpo.py --run --run-dir runs/mine
      make the recipe and start it: what follows --run are flags of `openrlhf-tir train`
The script is read, not run. What only a run can tell is said."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    words = (
        "Python script that makes one of TRL's trainers, or a bash script that starts it; behind it the flags that it"
        " is given"
    )
    add_script_arguments(parser, EXAMPLES, words, "the recipe [NAME-OF-THE-SCRIPT.toml]")
    parser.usage = (
        "%(prog)s [--out FILE] [--gpus N] [--number N] [--rehearse] [--force] SCRIPT.py [FLAGS OF THE SCRIPT...]\n"
        "                                [--run [FLAGS...]]"
    )
    add_number(parser)
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="devices that the script ran on [what a bash script says, or 1]"
    )


def run(args: argparse.Namespace) -> int:
    name, *words = script_words(args) or [""]
    if not name:
        raise ConfigError("Nothing to import. Give a script: openrlhf-tir import-trl SCRIPT.py")
    path = Path(name)
    devices: Devices | None = Devices()
    if path.suffix in (".sh", ".bash", ".slurm", ".sbatch"):
        read = read_script(path, arguments=words)
        started = _commands_of(read, path)
        chosen = chosen_command(args.number, [call for call, _, _ in started])
        script, path = next((script, path) for call, script, path in started if call is chosen)
        if is_launched(chosen.launcher):
            devices = devices_of_launcher(chosen.launcher, (Path(), Path(name).parent), read.files)
    elif args.number != 1:
        raise ConfigError(f"--number {args.number}: {name} is no bash script, and one command. Leave --number out.")
    else:
        script = read_trl_script(path, words)
    if args.gpus:
        devices = Devices(per_node=args.gpus)
    elif devices is None:
        say(
            "how many devices the launcher starts processes on only its machine knows (accelerate's configuration,"
            " --nproc_per_node=gpu): 1 is taken, by which per_device_train_batch_size is multiplied. Import with"
            " --gpus N"
        )
        devices = Devices()
    args.out = args.out or f"{path.stem}.toml"
    out = Path(args.out)
    functions, rows_file = f"{out.stem}_functions.py", f"{out.stem}_rows.jsonl"
    # Code is found beside the recipe that names it, data where a command is started: that may be elsewhere.
    rows = str((out.parent / rows_file).absolute())
    if script.trainer == "SFTTrainer":
        command = "sft"
        recipe = import_trl_sft(script, path.stem, rows, devices)
    else:
        command = "train"
        recipe = import_trl(script, path.stem, functions, rows, devices, count_rows, first_rows)
    if args.rehearse:
        rehearse(recipe.draft)
    if command == "sft":
        imported = checked_fine_tuning(recipe.draft, recipe.nothing)
    else:
        say_turns(recipe.draft)
        imported = checked(recipe.draft, recipe.nothing, unchecked=FILES_OF_THE_USER)
    origin = f"From {path.name}, line {script.line}: TRL's {script.trainer}. Made by `openrlhf-tir import-trl`."
    text = recipe_text(origin, imported, source="script")
    files = {}
    if recipe.code:
        files[functions] = f'"""Functions of {path.name}, for the recipe {out.name}."""\n\n{recipe.code}'
    if recipe.rows:
        files[rows_file] = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in recipe.rows)
    return give_recipe(args, imported, text, command, files)


def _commands_of(read: Script, path: Path) -> list[tuple[Call, TrlScript, Path]]:
    """Return what a bash script starts: `accelerate launch train.py --flags`, or `trl grpo --flags`.

    Args:
        read: What it would do.
        path: The bash script.

    Returns:
        For each command that trains the command, the trainer's arguments, and the Python script (the bash script for a
        command of TRL's).

    Raises:
        ConfigError: It starts none of TRL's trainers.
    """
    for note in read.notes:
        say(note)
    failed: ConfigError | None = None
    found: dict[tuple[str, ...], tuple[Call, TrlScript, Path]] = {}
    for command in read.commands:
        try:
            started = _started(command, path, read.files)
        except ConfigError as e:
            failed = e
            continue
        if started is not None:
            found.setdefault(command.words, started)
    if found:
        return [*found.values()]
    if failed is not None:
        raise failed
    raise ConfigError(
        f"{path} starts no Python script that is on this machine, and no `trl grpo`, `trl rloo` or `trl sft`. Give the"
        " Python script itself, with its flags: openrlhf-tir import-trl train.py --config args.yaml"
    )


def _started(command: Command, path: Path, files: Mapping[str, str]) -> tuple[Call, TrlScript, Path] | None:
    """Return what a command of a bash script trains; None where it starts nothing that may train.

    Args:
        command: The command.
        path: The bash script.
        files: The files that the bash script writes itself.

    Raises:
        ConfigError: It starts a Python script that makes none of TRL's trainers.
    """
    launcher = [readable(word) for word in command.words]
    for i, word in enumerate(launcher):
        behind = command.words[i + 1 :]
        of_trl = _OF_TRL.fullmatch(word)
        if Path(word).name == "trl" and behind and behind[0] in COMMANDS:
            script = read_trl_text(text_of_command(behind[0]), path, behind[1:], files)
            told = [f"--{name}={script.config[name]}" for name in _OF_ACCELERATE if name in script.config]
            return Call(f"trl {behind[0]}", ("trl", *told), behind[1:], command.line), script, path
        if not word.endswith(".py") and of_trl is None:
            continue
        call = Call(word, tuple(launcher[:i]), behind, command.line)
        text = written_text(word, files)
        if text is not None:
            return call, read_trl_text(text, Path(word), behind, files), Path(word)
        file = existing_path(word, (Path(), path.parent))
        if file is not None:
            return call, read_trl_script(file, behind, files), file
        if of_trl is not None:
            return call, read_trl_text(text_of_command(of_trl[1]), path, behind, files), path
    return None
