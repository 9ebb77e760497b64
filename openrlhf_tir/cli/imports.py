"""What the import commands share: flags, sentences, the head of a recipe, its file and its start."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ..config.integrations.bash_script import Command, Script, read_script, readable, unknowns
from ..config.integrations.recipe_draft import Imported, toml_of
from ..config.integrations.script_call import Call
from ..errors import ConfigError, TirError
from .checks.host import Machine
from .exit_codes import DONE


def has_no_gpu() -> bool:
    """Return True where a run would find no GPU: none on this machine, and no Ray cluster to ask."""
    return not Machine().gpus and not os.environ.get("RAY_ADDRESS")


class Project(NamedTuple):
    """Whose scripts a command imports.

    Attributes:
        name: The project.
        command: The command.
        behind: What stands behind `--` instead of a script, in a word.
    """

    name: str
    command: str
    behind: str


def add_bash_arguments(parser: argparse.ArgumentParser, project: Project, examples: str) -> None:
    """Add the arguments of a command that imports a bash script or a command line."""
    words = (
        f"bash script that calls {project.name}, with the arguments it takes; or, behind --, the {project.behind}"
        " themselves"
    )
    add_script_arguments(parser, examples, words, "write the recipe there instead of printing it")
    add_number(parser)


def add_number(parser: argparse.ArgumentParser) -> None:
    """Add the argument that chooses one of a bash script's training commands."""
    parser.add_argument(
        "--number", type=int, default=1, metavar="N", help="which of the script's training commands [1]"
    )


def add_script_arguments(parser: argparse.ArgumentParser, examples: str, words: str, out: str) -> None:
    """Add the arguments that all imports have.

    Args:
        parser: The parser.
        examples: Shown behind the flags.
        words: The help of the script and its arguments.
        out: The help of --out.
    """
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples.replace("%", "%%")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="SCRIPT", help=words)
    parser.add_argument("--out", metavar="FILE", help=out)
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="cut the recipe down to two short batches on a machine without GPUs: the method stays, sizes change",
    )
    parser.add_argument("--force", action="store_true", help="replace files that are there and say something else")
    parser.add_argument(
        "--run",
        nargs=argparse.REMAINDER,
        help="start the recipe; what follows are flags of the command that runs it",
    )


def script_words(args: argparse.Namespace) -> list[str]:
    """Return the script with its arguments, or what stands behind `--`. Flags of the command that stand behind the
    script are set in `args`: every other word there is the script's own, one with dashes as well.

    Raises:
        ConfigError: --out or --number has no value, or --number is none.
    """
    words = list(args.words)
    if words[:1] == ["--"]:
        return words[1:]
    if "--run" in words:
        at = words.index("--run")
        args.run, words = words[at + 1 :], words[:at]
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if word in ("--rehearse", "--force"):
            setattr(args, word.removeprefix("--"), True)
        elif name == "--out" or (name == "--number" and "number" in args):
            value = value if equals else next(rest, "")
            if not value:
                raise ConfigError(f"{name} has no value. Give it one behind a space: {name} VALUE.")
            if name == "--number" and not value.isdecimal():
                raise ConfigError(f"--number {value}: not a number. Use --number 1, 2 and so on.")
            setattr(args, name.removeprefix("--"), int(value) if name == "--number" else value)
        else:
            kept.append(word)
    return kept


def read_bash(path: Path, arguments: Sequence[str], command: str) -> Script:
    """Return what a bash script would do.

    A Python program that starts the training is refused: reading it would not tell the command, and it is not run.

    Args:
        path: The script.
        arguments: What it is given.
        command: The import command, for the message.

    Raises:
        ConfigError: The file is a Python program, or cannot be read.
    """
    if path.suffix == ".py":
        raise ConfigError(
            f"{path} is a Python program, and what it starts only a run can tell. Print the command where it starts it,"
            f" for example print(shlex.join(command)), and give it: openrlhf-tir {command} -- COMMAND"
        )
    return read_script(path, arguments=arguments)


def say(sentence: str) -> None:
    """Print a sentence about the import to stderr, since the recipe itself may go to stdout."""
    print(f"import: {readable(sentence)}", file=sys.stderr)


def say_result(imported: Imported) -> None:
    """Say what a recipe trains, what differs from what was imported, and what has to be corrected before it runs."""
    say(f"{imported.summary}.")
    for sentence in imported.draft.defaults:
        say(f"OpenRLHF's default: {sentence}")
    for sentence in imported.draft.differences:
        say(f"differs: {sentence}")
    for problem in imported.problems:
        say(f"correct this: {problem}")


def training_call(
    args: argparse.Namespace,
    project: Project,
    calls_of: Callable[[Sequence[Command]], list[Call]],
    without_program: Callable[[list[str]], Call | None],
) -> tuple[Call, tuple[str, ...], Path | None] | None:
    """Return the training command that is imported, the words behind its program, and its script if it is in one.

    Return None, after a sentence, if there is no training command. Files that the script itself writes and the words
    name are written beside the recipe.

    Args:
        args: The arguments of `add_bash_arguments`.
        project: The project.
        calls_of: Returns those of some commands that start a program of the project.
        without_program: Returns the command for words that name no program; None if they are no such command either.

    Raises:
        ConfigError: Nothing is given, or the script cannot be read.
    """
    words = script_words(args)
    if not words:
        raise ConfigError(
            f"Nothing to import. Give a script, openrlhf-tir {project.command} SCRIPT.sh, or {project.behind}:"
            f" openrlhf-tir {project.command} -- {project.behind.upper()}..."
        )
    path = None
    script = Script()
    calls = calls_of([Command(tuple(words), 0)])
    if not calls and (call := without_program(words)) is not None:
        calls = [call]
    elif not calls:
        path = Path(words[0])
        script = read_bash(path, words[1:], project.command)
        calls = calls_of(script.commands)
    for note in script.notes:
        say(note)
    for call in calls:
        if call.sentence:
            say(f"{line_of(call.line)}{call.program}: {call.sentence}")
    if not calls:
        say(
            f"{' '.join(words)} starts no program of {project.name}. If the script wants arguments, give them behind"
            " its name."
        )
    trains = [call for call in calls if not call.sentence]
    if not trains:
        return None
    chosen = chosen_command(args.number, trains)
    if args.out is None and args.run is not None:
        args.out = f"{project.name.lower() if path is None else path.stem}.toml"
    return chosen, write_files_of(script, chosen.words, args.out, force=args.force), path


def chosen_command(number: int, commands: Sequence[Call]) -> Call:
    """Return the training command that --number names, counted from 1, and say which others there are.

    Raises:
        ConfigError: There is no such command.
    """
    if not 1 <= number <= len(commands):
        upper = f" to {len(commands)}" if len(commands) > 1 else ""
        raise ConfigError(
            f"--number {number}: the script has {len(commands)} training command(s). Use --number 1{upper}."
        )
    chosen = commands[number - 1]
    for i, command in enumerate(commands, 1):
        if command is not chosen:
            say(
                f"{line_of(command.line)}{command.program} is training command {i} of {len(commands)}: --number {i}"
                " imports it"
            )
    return chosen


def recipe_text(origin: str, imported: Imported, source: str = "command") -> str:
    """Return the text of a recipe: where it is from and what is to be known of it as comments, then the settings.

    Args:
        origin: Where it is from and what made it, as a sentence.
        imported: The recipe.
        source: What the recipe was made of, a command or a script.
    """
    draft = imported.draft
    head = [origin, "", f"{imported.summary}."]
    nothing = [", ".join(sorted(imported.nothing))] if imported.nothing else []
    lists = {
        f"What differs from the {source}, or is left out:": draft.differences,
        f"What the {source} does not say, and OpenRLHF 0.11.2 does otherwise than this project:": draft.defaults,
        "What has to be corrected before it runs:": imported.problems,
        "What needs nothing here, or changes nothing that is trained:": nothing,
    }
    for title, items in lists.items():
        if items:
            head += ["", title, *(f"- {item}" for item in items)]
    return toml_of(draft, head)


def write_files_of(script: Script, words: Sequence[str], out: str | None, *, force: bool) -> tuple[str, ...]:
    """Write the files that a script writes and its command reads, and return the command's words with their new names.

    A reward function that stands in the script as a here-document is on no disk while nothing is run: it is written
    beside the recipe.

    Args:
        script: The script.
        words: The command's words.
        out: The recipe's path; None where it is printed, so that nothing is written.
        force: Replace files that are there.

    Raises:
        ConfigError: A file is there with another text, or one cannot be written.
    """
    words = list(words)
    written: dict[Path, str] = {}
    files = script.files
    for name, text in sorted(files.items(), key=lambda item: -len(item[0])):
        named = {i: path for i, word in enumerate(words) if (path := _named_path(word, name))}
        if not named:
            continue
        if unknowns(text):
            say(f"{name}: the script writes this file with values that only a run can tell. Write it yourself.")
            continue
        if out is None:
            say(f"{name}: the script writes this file itself. With --out FILE the import writes it beside the recipe.")
            continue
        beside = Path(out).absolute().with_name(f"{Path(out).stem}_{Path(readable(name)).name}")
        written[beside] = text
        for i, path in named.items():
            words[i] = words[i].replace(path, str(beside))
        say(f"{name}: the script writes this file itself; the import writes it as {beside.name} beside the recipe")
    write(written, force=force)
    return tuple(words)


def _named_path(word: str, name: str) -> str | None:
    """Return the part of a command's word that names a file, as FILE or x=FILE, relative or not; None where none
    does."""
    candidates = [word, word.partition("=")[2]]
    return next((path for path in candidates if path and os.path.abspath(path) == os.path.abspath(name)), None)


def line_of(number: int) -> str:
    """Return "line N: ", or nothing for a command that does not come from a script."""
    return f"line {number}: " if number else ""


def write(files: Mapping[Path, str], *, force: bool = False) -> None:
    """Write the files of an import, with the directories above them.

    A file that is there with another text may hold the user's own changes. It is replaced only with `force`, and
    nothing at all is written where one is refused. A file that has the same text already is left alone.

    Args:
        files: Path -> text.
        force: Replace files that are there.

    Raises:
        ConfigError: A file is there, or one cannot be written.
    """
    changed = {path: text for path, text in files.items() if not _has(path, text)}
    there = [path for path in changed if path.exists()]
    if there and not force:
        names = ", ".join(map(str, there))
        raise ConfigError(
            f"{names}: there already, with another text than the import would write. Nothing was written. Give another"
            " --out, or --force to replace what is there."
        )
    for path, text in changed.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as e:
            raise ConfigError(f"{path} cannot be written: {e.strerror or e}. Choose another --out.") from None


def _has(path: Path, text: str) -> bool:
    """Return True if a file has this text already."""
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False


def start(command: str, recipe: Path, flags: Sequence[str]) -> NoReturn:
    """Run `openrlhf-tir COMMAND --recipe RECIPE FLAGS...` in place of this process, so that signals and restarts by a
    launcher find what they would find without the import."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "openrlhf_tir.cli", command, "--recipe", str(recipe), *flags])


def give_recipe(
    args: argparse.Namespace,
    imported: Imported,
    text: str,
    command: str = "train",
    beside: Mapping[str, str] | None = None,
) -> int:
    """Print a recipe, or write it to --out and start it where --run asks for that, and return the exit code.

    Args:
        args: The arguments of `add_script_arguments`.
        imported: The recipe. What is to be known of it goes to stderr.
        text: The recipe as text.
        command: The command that runs it.
        beside: Name -> text of files that the recipe needs in its directory.

    Raises:
        ConfigError: A file is there with another text, or it cannot be written.
    """
    say_result(imported)
    if args.out is None:
        print(text, end="")
        return DONE
    path = Path(args.out)
    files = {path: text, **{path.parent / name: content for name, content in (beside or {}).items()}}
    write(files, force=args.force)
    written = ", ".join(map(str, files))
    say(f"written: {written}. Check it: openrlhf-tir {command} --recipe {path} --check-only")
    if not args.rehearse and has_no_gpu():
        say("this machine has no GPU. Import with --rehearse to try the recipe with a small model on its processors")
    if args.run is None:
        return DONE
    start(command, path, args.run)


FIRST_ROWS = 16
"""Rows of a file that are looked at."""


def first_rows(names: Sequence[str], split: str = "train") -> list[dict[str, Any]]:
    """Return the first rows of each of some files, as far as the files are on this machine and can be read."""
    from ..data.bad_rows import BadRows
    from ..data.rows import read_rows

    rows: list[dict[str, Any]] = []
    for name in names:
        if Path(name).exists():
            try:
                rows += [row for _, row in islice(read_rows(name, split, BadRows("skip")), FIRST_ROWS)]
            except TirError:
                continue
    return rows


def count_rows(names: Sequence[str], split: str = "train") -> int | None:
    """Return the number of rows of some files together; None where there is none, one is not on this machine, or one
    cannot be read: that is said when the recipe is checked."""
    from ..data.bad_rows import BadRows
    from ..data.rows import read_rows

    if not names or not all(Path(name).exists() for name in names):
        return None
    try:
        return sum(1 for name in names for _ in read_rows(name, split, BadRows("skip")))
    except TirError:
        return None
