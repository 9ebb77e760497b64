"""Read a remote reward's answer for n responses. A missing value, or one that is not a number, is an error.

    one number per response (a list, a tensor), or
    {"rewards": [n], "scores": [n], "extra_logs": {name: [n], or one number for all}}

Filters look at the scores, which become the part `correct` unchanged. Without scores the rewards take their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...types import CORRECT_ABOVE, RewardParts
from ...user_code.failures import show
from .. import accept


def plain(result: Any) -> Any:
    """Return a result with lists in place of tensors and arrays, at any depth, so that it can cross a process."""
    if isinstance(result, Mapping):
        return {str(name): plain(value) for name, value in result.items()}
    if isinstance(result, list | tuple):
        return [plain(value) for value in result]
    return result.tolist() if callable(getattr(result, "tolist", None)) else result


def parts_of(answer: Any, n: int) -> list[RewardParts]:
    """Return the rewards in an answer for n responses.

    Raises:
        WrongResult: The answer has another form.
    """
    table = answer if isinstance(answer, Mapping) else {"rewards": answer}
    if table.get("rewards") is None:
        raise accept.WrongResult(f'the answer has no "rewards" (it has: {", ".join(map(str, table)) or "nothing"})')
    rewards = _numbers("rewards", table["rewards"], n)
    scores = _numbers("scores", table["scores"], n) if table.get("scores") is not None else rewards
    logs = table.get("extra_logs") or {}
    if not isinstance(logs, Mapping):
        raise accept.WrongResult(f'"extra_logs" is {type(logs).__name__}, not a table of numbers')
    columns = {
        str(name): _numbers(f'"extra_logs" of {name!r}', value, n, one_for_all=True)
        for name, value in logs.items()
        if value is not None
    }
    return [
        RewardParts(
            reward, score > CORRECT_ABOVE, {**{name: column[i] for name, column in columns.items()}, "correct": score}
        )
        for i, (reward, score) in enumerate(zip(rewards, scores, strict=True))
    ]


def _numbers(name: str, value: Any, n: int, *, one_for_all: bool = False) -> list[float]:
    """Return n finite numbers. With `one_for_all` a single number counts for each response."""
    try:
        values = _flat(plain(value))
    except RecursionError:
        raise accept.WrongResult(f"{name} is nested too deeply") from None
    if len(values) == 1 and (n == 1 or one_for_all):
        values = values * n
    if len(values) != n:
        raise accept.WrongResult(f"{name} has {len(values)} values for {n} responses")
    numbers = []
    for item in values:
        if (number := accept.finite_number(item)) is None:
            raise accept.WrongResult(f"{name} holds {show(item)}, not a finite number")
        numbers.append(number)
    return numbers


def _flat(value: Any) -> list[Any]:
    """Return the items of nested lists in order."""
    return [leaf for item in value for leaf in _flat(item)] if isinstance(value, list) else [value]
