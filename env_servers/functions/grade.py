"""Grading: what a model called and left behind, against the gold calls. Pure functions over JSON.

    state        variables (World.state) that are as after the gold calls         ARTIST's state reward; BFCL v3: all of them
    calls        gold calls that were made, name and arguments                    ARTIST's function reward
    responses    every result of the gold calls is among the results obtained     BFCL v3's "minimal required calls", in any order
    outputs      every required text occurs in some message of the model          tau-bench, case-insensitive, commas removed

Sources: arXiv 2505.01441 section 3.2; gorilla multi_turn_checker; tau_bench/envs/base.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .tools import ToolError, World


@dataclass(frozen=True, slots=True)
class Made:
    """One call: `arguments` with defaults filled in where they were right; `result` is JSON text, an error's its message."""

    name: str
    arguments: Any
    result: str
    error: str | None = None

    @property
    def key(self) -> str:
        return f"{self.name} {as_text(self.arguments)}"


@dataclass(slots=True)
class Grade:
    """`matched` of `total`, for state variables and for expected calls."""

    state_match: int = 0
    state_total: int = 0
    functions_matched: int = 0
    functions_total: int = 0
    responses_found: bool = True
    missing: list[str] = field(default_factory=list)
    """Required texts that no message holds."""

    @property
    def passed(self) -> bool:
        """As BFCL and tau-bench judge: the whole state, every response, every output."""
        return self.state_match == self.state_total and self.responses_found and not self.missing


def as_text(value: Any) -> str:
    """JSON with sorted names, so that equal values are equal texts."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def run(world: World, name: str, arguments: Any) -> Made:
    """Carry out one call. What cannot be carried out is a Made with an error."""
    try:
        result = as_text(world.call(name, arguments))
    except ToolError as e:
        return Made(name, arguments, as_text(str(e)), error=str(e))
    return Made(name, world.owner[name].tools()[name].checked(arguments), result)


def states(world: World, gold: World) -> tuple[int, int]:
    """(variables that are equal, variables)."""
    have, want = world.state(), gold.state()
    return sum(as_text(have[k]) == as_text(v) for k, v in want.items()), len(want)


def calls_matched(made: Iterable[Made], gold: Iterable[Made]) -> int:
    """How many gold calls were made; a call that was made once counts once."""
    return (Counter(m.key for m in made if m.error is None) & Counter(g.key for g in gold)).total()


def responses_found(made: Iterable[Made], gold: Iterable[Made]) -> bool:
    return not Counter(g.result for g in gold) - Counter(m.result for m in made)


def outputs_missing(messages: Sequence[str], outputs: Iterable[str]) -> list[str]:
    said = [m.lower().replace(",", "") for m in messages]
    return [o for o in outputs if not any(o.lower().replace(",", "") in m for m in said)]


def grade(world: World, gold: World, made: Sequence[Made], expected: Sequence[Made], messages: Sequence[str] = (), outputs: Iterable[str] = ()) -> Grade:
    """Of the whole episode so far."""
    match, total = states(world, gold)
    return Grade(match, total, calls_matched(made, expected), len(expected), responses_found(made, expected), outputs_missing(messages, outputs))
