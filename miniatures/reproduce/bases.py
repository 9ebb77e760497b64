"""Bases: the model that the arms of a seed start from; made on first use and kept.

A toy is made by lesson and seed (`openrlhf-tir toy-model`), a packaged language model once (`openrlhf-tir model`).
"""

from __future__ import annotations

from pathlib import Path

from ..rows import write_jsonl
from ..toy import lessons
from .arms import PROBLEMS, RECIPE
from .commands import Command, How, run
from .miniature import Base, Packaged


def directory_of(base: Base | Packaged, seed: int, bases: Path) -> Path:
    """Return a run directory with base/ (the model); a toy's also has data/ (the problems) and init/ (its random
    beginning)."""
    if isinstance(base, Packaged):
        return bases / base.name
    return bases / f"{base.lesson}-{seed}"


def corpus_of(base: Base, seed: int, bases: Path) -> Path:
    """Return the file of a lesson's corpus, beside the directory: the server reads it before the base is made."""
    directory = directory_of(base, seed, bases)
    return directory.with_name(f"{directory.name}.corpus.jsonl")


def flags_of(base: Base | Packaged, seed: int, bases: Path) -> tuple[str, ...]:
    """Return the flags that the base gives to all arms."""
    if isinstance(base, Packaged):
        return ()
    return base.flags_with(corpus_of(base, seed, bases))


def is_ready(base: Base, seed: int, bases: Path) -> bool:
    """Return True if the base is there, also if it was copied from a quickstart's run directory: its figures say what
    it is."""
    directory = directory_of(base, seed, bases)
    return (directory / "data" / "test.jsonl").exists() and lessons.is_base(
        directory / "base" / lessons.FIGURES, base.lesson, seed
    )


def write_corpus(base: Base | Packaged, seed: int, bases: Path, how: How) -> None:
    """Write what the server of a toy's lesson searches, if it searches anything, unless it is there."""
    if isinstance(base, Packaged) or (corpus := lessons.named(base.lesson).corpus) is None:
        return
    path = corpus_of(base, seed, bases)
    with how.lock(bases / "locks" / path.stem):
        if not path.exists():
            write_jsonl(corpus(), path)


def made(base: Base | Packaged, seed: int, bases: Path, how: How) -> Path:
    """Return the base's run directory. Another process that makes it is waited for.

    Raises:
        ReproductionFailed: It cannot be made, or missed its gates.
    """
    write_corpus(base, seed, bases, how)
    directory = directory_of(base, seed, bases)
    with how.lock(bases / "locks" / directory.name):
        if isinstance(base, Packaged):
            _convert(base, directory, how)
        else:
            _make(base, seed, bases, how)
    return directory


def _convert(base: Packaged, directory: Path, how: How) -> None:
    """Make the Hugging Face directory of a packaged model, unless it is there."""
    if (directory / "base" / "config.json").is_file():
        return
    command = Command(["model", base.name, "--out", str(directory / "base")], directory)
    command.mark.unlink(missing_ok=True)  # An earlier conversion may have finished; its model is gone.
    how.say(f"making the model {directory / 'base'} (once; log: {command.log})")
    run(command, timeout_s=how.timeout_s, execute=how.execute)


def _make(base: Base, seed: int, bases: Path, how: How) -> None:
    directory = directory_of(base, seed, bases)
    if not is_ready(base, seed, bases):
        words = [
            "toy-model", "--recipe", RECIPE, "--lesson", base.lesson, "--run-dir", str(directory),
            "--train.seed", str(seed),
        ]  # fmt: skip
        words += ["--eval.max_samples", str(PROBLEMS), *flags_of(base, seed, bases)]
        command = Command(words, directory)
        command.mark.unlink(missing_ok=True)  # finished it may have been, but what it made is gone
        how.say(f"seed {seed}: making the base model {directory} (once; log: {command.log})")
        run(command, timeout_s=how.timeout_s, execute=how.execute)
