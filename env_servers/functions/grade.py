"""Compare what a model called and left behind with the gold calls. Pure functions over JSON.

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
class CallResult:
    """One call that was made.

    Attributes:
        name: Name of the function.
        arguments: The arguments, with defaults filled in if the call succeeded.
        result: The result as JSON text; for a call that failed, its error.
        error: Why the call failed; None if it succeeded.
    """

    name: str
    arguments: Any
    result: str
    error: str | None = None

    @property
    def key(self) -> str:
        """Name and arguments as text: equal calls have equal keys."""
        return f"{self.name} {as_text(self.arguments)}"


class Tally:
    """Counts of the calls that were made.

    Attributes:
        calls: How often each call succeeded, by `CallResult.key`.
        results: How often each result was obtained, failed calls included.
        count: Number of calls.
        errors: Number of calls that failed.
    """

    def __init__(self, results: Iterable[CallResult] = ()) -> None:
        self.calls: Counter[str] = Counter()
        self.results: Counter[str] = Counter()
        self.count = 0
        self.errors = 0
        self.add(results)

    def add(self, results: Iterable[CallResult]) -> None:
        """Count further calls."""
        for call in results:
            self.count += 1
            self.errors += call.error is not None
            self.results[call.result] += 1
            if call.error is None:
                self.calls[call.key] += 1


@dataclass(slots=True)
class Grade:
    """How far calls agree with the gold: matched and total state variables and calls.

    Attributes:
        responses_found: True if every result of the gold calls was obtained.
        missing: Required texts that no message holds.
    """

    state_match: int = 0
    state_total: int = 0
    functions_matched: int = 0
    functions_total: int = 0
    responses_found: bool = True
    missing: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """True by the rule of BFCL and tau-bench: the whole state, every response, every output."""
        return self.state_match == self.state_total and self.responses_found and not self.missing


def as_text(value: Any) -> str:
    """Return a value as JSON with sorted names, so that equal values are equal texts."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def run(world: World, name: str, arguments: Any) -> CallResult:
    """Carry out one call. If it cannot be carried out, the result has an error."""
    try:
        result = as_text(world.call(name, arguments))
    except ToolError as e:
        return CallResult(name, arguments, as_text(str(e)), error=str(e))
    return CallResult(name, world.owner[name].tools()[name].checked(arguments), result)


def states(world: World, gold: Mapping[str, str]) -> tuple[int, int]:
    """Return the number of variables that are as in `gold`, and of all variables. `gold` has their values as text."""
    state = world.state()
    return sum(as_text(state[name]) == value for name, value in gold.items()), len(gold)


def state_texts(world: World) -> dict[str, str]:
    """Return the value of each variable as text."""
    return {name: as_text(value) for name, value in world.state().items()}


def calls_matched(calls: Tally, gold: Tally) -> int:
    """Return how many gold calls were made. A call that was made once counts once."""
    return sum(min(count, calls.calls[key]) for key, count in gold.calls.items())


def responses_found(calls: Tally, gold: Tally) -> bool:
    """Return True if every result of the gold calls was obtained, as often."""
    return all(calls.results[result] >= count for result, count in gold.results.items())


def outputs_missing(messages: Sequence[str], outputs: Iterable[str]) -> list[str]:
    """Return the required texts that occur in no message, regardless of case and commas."""
    spoken = [message.lower().replace(",", "") for message in messages]
    return [output for output in outputs if not any(output.lower().replace(",", "") in message for message in spoken)]


def grade(
    world: World,
    gold: Mapping[str, str],
    calls: Tally,
    expected: Tally,
    messages: Sequence[str] = (),
    outputs: Iterable[str] = (),
) -> Grade:
    """Grade everything up to now.

    Args:
        world: The world as the model has left it.
        gold: The state after the gold calls, as text.
        calls: The model's calls.
        expected: The gold calls.
        messages: The model's messages.
        outputs: Texts that the messages must hold.
    """
    match, total = states(world, gold)
    return Grade(
        state_match=match,
        state_total=total,
        functions_matched=calls_matched(calls, expected),
        functions_total=expected.count,
        responses_found=responses_found(calls, expected),
        missing=outputs_missing(messages, outputs),
    )
