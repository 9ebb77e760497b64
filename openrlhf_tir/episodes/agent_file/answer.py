"""In the worker: what `execute` returned -> plain numbers, or a ValueError that says what OpenRLHF's interface asks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .wire import Message


def answer(result: Any) -> Message:
    """{"observation_tokens", "action_ranges", "reward", "scores", "truncated", "extra_logs"}; the reward may be None:
    the run's own judges."""
    if not isinstance(result, Mapping):
        raise ValueError(f"execute returned {type(result).__name__}, not a dict")
    if lacks := [name for name in ("observation_tokens", "action_ranges") if name not in result]:
        raise ValueError(f"execute returned no {', '.join(lacks)}")
    if result.get("mm_train_inputs") is not None:
        raise ValueError("execute returned images (mm_train_inputs), and tasks are text here")
    logs = result.get("extra_logs") or {}
    if not isinstance(logs, Mapping):
        raise ValueError(f"extra_logs is {type(logs).__name__}, not a dict of numbers")
    return {
        "observation_tokens": [int(i) for i in result["observation_tokens"]],
        "action_ranges": [[int(a), int(b)] for a, b in result["action_ranges"]],
        "reward": number("reward", result.get("reward")),
        "scores": number("scores", result.get("scores")),
        "truncated": bool(result.get("truncated", False)),
        "extra_logs": {
            str(name): number(f"extra_logs[{name!r}]", value) for name, value in logs.items() if value is not None
        },
    }


def number(name: str, value: Any) -> float | None:
    """A finite number, or the first of a tensor, as OpenRLHF takes it. Raises ValueError for anything else."""
    if value is None:
        return None
    try:
        value = value.flatten()[0].item() if hasattr(value, "flatten") else value
        x = float(value)
    except (TypeError, ValueError, IndexError):
        raise ValueError(f"{name} is {value!r} ({type(value).__name__}), not a number") from None
    if not math.isfinite(x):
        raise ValueError(f"{name} is {x}, which is not finite")
    return x
