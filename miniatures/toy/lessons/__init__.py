"""Lessons: what a toy base model is taught before RL, and the problems that RL then gives it. One file per method.

    draw(rng, tool_ratio)       -> one solved example, token by token with who wrote it, written as the method's turn
                                protocol shows an episode
    rows(n, split, seed)        -> n rows in the schema in which the method's own data are published
    examples(n, seed)           -> n rows of prompt and response for `openrlhf-tir sft`, where the method has a
                                fine-tuning
    corpus()                    -> the passages that its environment searches
    gates                       -> the figures between which a base must lie, so that RL has something to discover

A lesson teaches how a tool is used and that it need not be used: how often the base uses it, and how well, is the
schedule's and the gates' say."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, get_args

import xxhash

from openrlhf_tir.data.sft import tokens
from openrlhf_tir.data.sft.tokens import SftRow
from openrlhf_tir.errors import unknown

from ...rows import Split
from ..cold_start import GATES, STEERED, Schedule

QUICKSTART = "quickstart"
DRAWN_AT, ROWS = 64 * (0.5,), 16
"""Tool ratios of the examples, and the problems of each split, that tell a lesson from another."""
EXAMPLES = 8192
"""Rows for fine-tuning in data/sft.jsonl; an arm takes the first so many."""
FIGURES = "figures.json"
"""The file, in a base's directory, of the figures with which it passed its gates, its seed and its lesson."""


@dataclass(frozen=True)
class Lesson:
    """`rows` gives the same rows for the same arguments, and no problem of the test split in training."""

    draw: Callable[[Random, float], SftRow]
    rows: Callable[[int, Split, int], list[dict[str, Any]]]
    gates: Mapping[str, tuple[float, float]] = field(default_factory=lambda: GATES)
    schedule: Schedule = field(default_factory=Schedule)
    steered: str = STEERED
    """The figure that the tool ratio decides, and by whose distance from its gate a repair moves the ratio; "": none, a
    repair leaves it."""
    examples: Callable[[int, int], list[dict[str, Any]]] | None = None
    corpus: Callable[[], list[dict[str, Any]]] | None = None


LESSONS = (
    QUICKSTART, "world_model", "torl", "torl_calls", "calculator", "toolrl", "tool_n1", "artist", "retool", "search",
    "functions", "mending", "out_of_reach",
)  # fmt: skip
"""Each is the module of that name beside this one, with a `LESSON`."""


def named(name: str) -> Lesson:
    """Return the lesson of a name. Raises ConfigError for a name that is not known."""
    if name not in LESSONS:
        raise unknown("--lesson", name, LESSONS, "A lesson is a file of miniatures/toy/lessons.")
    lesson: Lesson = import_module(f".{name}", __name__).LESSON
    return lesson


def digest(name: str) -> str:
    """Return a hash of a lesson's examples, problems, gates and steps.

    A base that was made when the lesson had another hash is no base of it any more.
    """
    lesson, rng = named(name), Random(name)
    examples = tokens.digest(lesson.draw(rng, tool_ratio) for tool_ratio in DRAWN_AT)
    examples += json.dumps([lesson.rows(ROWS, split, 0) for split in get_args(Split)], sort_keys=True)
    steps = repr((sorted(lesson.gates.items()), lesson.schedule, lesson.steered))
    return xxhash.xxh3_128_hexdigest((examples + steps).encode())


def record(lesson: str, seed: int) -> dict[str, Any]:
    """Return what a base's FIGURES says of how it was made, which `is_base` reads."""
    return {"seed": seed, "lesson": lesson, "digest": digest(lesson)}


def is_base(figures: Path, lesson: str, seed: int) -> bool:
    """Return True if the file `figures` says that a base of this lesson, as it is now, and seed passed its gates.

    A file that is missing, or that a crash of the machine has torn, says nothing.
    """
    try:
        made = json.loads(figures.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if not isinstance(made, dict):
        return False
    is_same = (made.get("seed"), made.get("lesson", QUICKSTART)) == (seed, lesson)
    return is_same and made.get("digest") in (None, digest(lesson))  # None: made by a version that did not tell
