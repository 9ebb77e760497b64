"""Miniature: what is compared, and what has to be seen. Pure data and pure functions; arms.py runs it.

arms of one seed, each {figure: value}  ->  checks(arms)  ->  [Check]  ->  seen iff all hold
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from openrlhf_tir.errors import ReproductionFailed

from .arms import Arm


class Check(NamedTuple):
    """One demand on the figures.

    Attributes:
        said: The demand and its values as a sentence, for people.
        ok: Whether it holds.
        value: What was measured.
        bar: The bound on it.
    """

    said: str
    ok: bool
    value: float
    bar: float


class Figures(Mapping[str, float]):
    """The figures of one arm. A missing one is an error with the arm: an evaluation failed, or nothing was called."""

    def __init__(self, arm: str, values: Mapping[str, float]) -> None:
        self.arm, self.values_by_name = arm, dict(values)

    def __getitem__(self, name: str) -> float:
        if name not in self.values_by_name:
            raise ReproductionFailed(
                f"Arm {self.arm!r} has no figure {name!r}; it has {', '.join(sorted(self.values_by_name)) or 'none'}."
                " Look at its log beside its directory; delete the directory, and the same command runs the arm again."
            )
        return self.values_by_name[name]

    def __iter__(self):
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)


Arms = Mapping[str, Figures]


CORPUS = "{corpus}"
"""What stands in a base's flags for the path of the lesson's corpus."""


@dataclass(frozen=True)
class Base:
    """The model that the arms start from: taught a lesson of miniatures/toy/lessons, by the turns and the reward
    that `flags` name. The arms have these flags too."""

    lesson: str
    flags: tuple[str, ...] = ()

    described = "A model of 167 thousand parameters on generated problems"

    def flags_with(self, corpus: Path) -> tuple[str, ...]:
        """Return the flags, with the path of the lesson's corpus in the place of CORPUS."""
        return tuple(flag.replace(CORPUS, str(corpus)) for flag in self.flags)


@dataclass(frozen=True)
class Packaged:
    """A language model that ships inside a package, a key of miniatures/packaged_models.MODELS; the arms make their own
    rows."""

    name: str
    described = "A language model of 135 million parameters on small tasks"


class Panel(NamedTuple):
    """A small figure of the page: one curve an arm."""

    curve: str
    title: str
    x: str = "learner update"


@dataclass(frozen=True)
class Miniature:
    """A comparison: its claim, its arms, and what they must show."""

    name: str
    title: str
    claim: str
    """What the paper says, in one sentence that the arms can refute."""
    base: Base | Packaged
    arms: Mapping[str, Arm]
    checks: Callable[[Arms], list[Check]]
    """What the arms of one seed must show."""
    panels: tuple[Panel, ...]
    columns: tuple[str, ...]
    """The figures that the table shows."""
    by_construction: str = ""
    """What of the effect follows from how the miniature is made; "" where nothing does."""


def judged(miniature: Miniature, figures: Mapping[str, Mapping[str, float]]) -> list[Check]:
    """Return the checks of one seed. Raises ReproductionFailed if an arm lacks a figure."""
    return miniature.checks({name: Figures(name, values) for name, values in figures.items()})


def ratio(value: float, base: float) -> float:
    """Return `value` over `base`, two figures that are not negative.

    An arm that is destroyed may have a figure of 0. Over it everything else is infinite, and 0 is no number, which
    meets no demand.
    """
    if base:
        return value / base
    return math.inf if value else math.nan


def at_least(what: str, value: float, bar: float) -> Check:
    """Return the demand that a value is `bar` or more. `what` begins the sentence: what was measured."""
    return Check(f"{what} is {value:.3f}, at least {bar:g} is asked", value >= bar, value, bar)


def at_most(what: str, value: float, bar: float) -> Check:
    """Return the demand that a value is `bar` or less; `what` is as in `at_least`."""
    return Check(f"{what} is {value:.3f}, at most {bar:g} is asked", value <= bar, value, bar)
