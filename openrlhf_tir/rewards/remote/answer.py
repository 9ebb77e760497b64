"""What a remote reward said of n responses -> n RewardParts. Nothing is guessed: what is missing or no number is an
error.

    one number per response (a list, a tensor), or {"rewards": [n], "scores": [n], "extra_logs": {name: [n] or one
    number for all}}

`scores` are what filters look at: they become the part `correct`, as they are; without them the rewards do.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...types import RewardParts

HALF = 0.5
"""A score above it counts as correct."""


def plain(result: Any) -> Any:
    """Tensors and arrays as lists, at any depth: what crosses a process."""
    if isinstance(result, Mapping):
        return {str(name): plain(value) for name, value in result.items()}
    if isinstance(result, list | tuple):
        return [plain(value) for value in result]
    return result.tolist() if callable(getattr(result, "tolist", None)) else result


def parts_of(said: Any, n: int) -> list[RewardParts]:
    """Raises ValueError, with what is wrong as a whole phrase."""
    table = said if isinstance(said, Mapping) else {"rewards": said}
    if table.get("rewards") is None:
        raise ValueError(f'the answer has no "rewards" (it has: {", ".join(map(str, table)) or "nothing"})')
    rewards = _each("rewards", table["rewards"], n)
    scores = _each("scores", table["scores"], n) if table.get("scores") is not None else rewards
    logs = table.get("extra_logs") or {}
    if not isinstance(logs, Mapping):
        raise ValueError(f'"extra_logs" is {type(logs).__name__}, not a table of numbers')
    columns = {
        str(name): _each(f'"extra_logs" of {name!r}', value, n, one_for_all=True)
        for name, value in logs.items()
        if value is not None
    }
    return [
        RewardParts(reward, score > HALF, {**{name: column[i] for name, column in columns.items()}, "correct": score})
        for i, (reward, score) in enumerate(zip(rewards, scores, strict=True))
    ]


def _each(name: str, value: Any, n: int, *, one_for_all: bool = False) -> list[float]:
    values = _flat(plain(value))
    if len(values) == 1 and (n == 1 or one_for_all):
        values = values * n
    if len(values) != n:
        raise ValueError(f"{name} has {len(values)} values for {n} responses")
    for x in values:
        if not isinstance(x, numbers.Real | np.bool_) or not math.isfinite(x):
            raise ValueError(f"{name} holds {x!r} ({type(x).__name__}), not a finite number")
    return [float(x) for x in values]


def _flat(value: Any) -> list[Any]:
    return [x for item in value for x in _flat(item)] if isinstance(value, list) else [value]
