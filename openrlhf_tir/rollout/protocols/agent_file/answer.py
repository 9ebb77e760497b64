"""In the worker: check what `execute` returned and turn it into plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .wire import Message


def answer(result: Any, vocab_size: int) -> Message:
    """Return the result as JSON-ready values.

    The keys are observation_tokens, action_ranges, reward, scores, truncated and extra_logs. A reward of None leaves
    the sample to the run's own reward.

    Args:
        result: What `execute` returned.
        vocab_size: Token ids of the model are below it.

    Raises:
        ValueError: The result is not what OpenRLHF's interface requires.
    """
    if not isinstance(result, Mapping):
        raise ValueError(f"execute returned {type(result).__name__}, not a dict")
    missing = [name for name in ("observation_tokens", "action_ranges") if name not in result]
    if missing:
        raise ValueError(f"execute returned no {', '.join(missing)}")
    if result.get("mm_train_inputs") is not None:
        raise ValueError("execute returned images (mm_train_inputs), and tasks are text here")
    logs = result.get("extra_logs") or {}
    if not isinstance(logs, Mapping):
        raise ValueError(f"extra_logs is {type(logs).__name__}, not a dict of numbers")
    tokens = [int(token) for token in result["observation_tokens"]]
    if wrong := [token for token in tokens if not 0 <= token < vocab_size]:
        raise ValueError(
            f"observation_tokens holds {wrong[0]}, which is no token's id: the model's are below {vocab_size}"
        )
    return {
        "observation_tokens": tokens,
        "action_ranges": [[int(start), int(end)] for start, end in result["action_ranges"]],
        "reward": number("reward", result.get("reward")),
        "scores": number("scores", result.get("scores")),
        "truncated": bool(result.get("truncated", False)),
        "extra_logs": {
            str(name): number(f"extra_logs[{name!r}]", value) for name, value in logs.items() if value is not None
        },
    }


def number(name: str, value: Any) -> float | None:
    """Return a value as a finite float. Of a tensor the first element counts, as in OpenRLHF. None stays None.

    Args:
        name: Name of the value, for the error.
        value: The value.

    Raises:
        ValueError: It is not a finite number.
    """
    if value is None:
        return None
    try:
        value = value.flatten()[0].item() if hasattr(value, "flatten") else value
        result = float(value)
    except (TypeError, ValueError, IndexError, OverflowError):
        raise ValueError(f"{name} is {value!r} ({type(value).__name__}), not a number") from None
    if not math.isfinite(result):
        raise ValueError(f"{name} is {result}, which is not finite")
    return result
