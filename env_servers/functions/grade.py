"""Grading: what a model called and left behind, against the gold calls. Pure functions over JSON.

    state        variables (World.state) that are as after the gold calls         ARTIST's state reward; BFCL v3: all
    calls        gold calls that were made, name and arguments                    ARTIST's function reward
    responses    every result of the gold calls is among the results obtained     BFCL v3's "minimal required calls",
                                                                                  in any order
    outputs      every required text occurs in some message of the model          tau-bench, in any case, no commas

Sources: arXiv 2505.01441 section 3.2; gorilla multi_turn_checker; tau_bench/envs/base.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .tools import ToolError, World


@dataclass(frozen=True, slots=True)
class Made:
    """One call: `arguments` with defaults filled in if right; `result` is JSON text, an error's its message."""

    name: str
    arguments: Any
    result: str
    error: str | None = None

    @property
    def key(self) -> str:
        return f"{self.name} {as_text(self.arguments)}"


class Tally:
    """Calls that were made, counted: by name and arguments those that went well, by result all of them."""

    def __init__(self, made: Iterable[Made] = ()) -> None:
        self.calls: Counter[str] = Counter()
        self.results: Counter[str] = Counter()
        self.count = 0
        self.errors = 0
        self.add(made)

    def add(self, made: Iterable[Made]) -> None:
        for m in made:
            self.count += 1
            self.errors += m.error is not None
            self.results[m.result] += 1
            if m.error is None:
                self.calls[m.key] += 1


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


def states(world: World, gold: Mapping[str, str]) -> tuple[int, int]:
    """(variables that are equal, variables); `gold` holds them as text."""
    have = world.state()
    return sum(as_text(have[k]) == v for k, v in gold.items()), len(gold)


def state_texts(world: World) -> dict[str, str]:
    return {k: as_text(v) for k, v in world.state().items()}


def calls_matched(made: Tally, gold: Tally) -> int:
    """How many gold calls were made; a call that was made once counts once."""
    return sum(min(n, made.calls[key]) for key, n in gold.calls.items())


def responses_found(made: Tally, gold: Tally) -> bool:
    return all(made.results[result] >= n for result, n in gold.results.items())


def outputs_missing(messages: Sequence[str], outputs: Iterable[str]) -> list[str]:
    said = [m.lower().replace(",", "") for m in messages]
    return [o for o in outputs if not any(o.lower().replace(",", "") in m for m in said)]


def grade(
    world: World,
    gold: Mapping[str, str],
    made: Tally,
    expected: Tally,
    messages: Sequence[str] = (),
    outputs: Iterable[str] = (),
) -> Grade:
    """The grade of all that was made so far."""
    match, total = states(world, gold)
    missing = outputs_missing(messages, outputs)
    return Grade(match, total, calls_matched(made, expected), expected.count, responses_found(made, expected), missing)
