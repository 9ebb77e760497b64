"""Bases: the model that the arms of a seed start from, by lesson and seed; made on first use by `openrlhf-tir
toy-model`, and kept."""

from __future__ import annotations

from pathlib import Path

from ..toy import lessons
from ..toy.task import write_jsonl
from .arms import PROBLEMS, RECIPE
from .commands import Command, How, run
from .miniature import Base


def directory_of(base: Base, seed: int, bases: Path) -> Path:
    """A run directory with base/ (the model), data/ (the problems) and init/ (its random beginning)."""
    return bases / f"{base.lesson}-{seed}"


def corpus_of(base: Base, seed: int, bases: Path) -> Path:
    """Beside the directory: the server reads it before the base is made."""
    directory = directory_of(base, seed, bases)
    return directory.with_name(f"{directory.name}.corpus.jsonl")


def flags_of(base: Base, seed: int, bases: Path) -> tuple[str, ...]:
    return base.flags_with(corpus_of(base, seed, bases))


def is_ready(base: Base, seed: int, bases: Path) -> bool:
    """Also for one that was copied from a quickstart's run directory: its figures say what it is."""
    directory = directory_of(base, seed, bases)
    return (directory / "data" / "test.jsonl").exists() and lessons.is_base(
        directory / "base" / lessons.FIGURES, base.lesson, seed
    )


def made(base: Base, seed: int, bases: Path, how: How) -> Path:
    """The base's run directory. Raises ReproductionFailed where it cannot be made, or missed its gates. Another process
    that makes it is waited for."""
    directory = directory_of(base, seed, bases)
    with how.lock(bases / "locks" / directory.name):
        _make(base, seed, bases, how)
    return directory


def _make(base: Base, seed: int, bases: Path, how: How) -> None:
    directory = directory_of(base, seed, bases)
    corpus = lessons.named(base.lesson).corpus
    if corpus and not (path := corpus_of(base, seed, bases)).exists():
        write_jsonl(corpus(), path)
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
