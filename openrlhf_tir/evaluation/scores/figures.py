"""Put all figures of one evaluation together, with intervals, as values that JSON can hold.

    {"problems", "samples", "failed", "n", "level",
     "avg@n": [value, low, high], "pass@k": {k: [...]}, "pass^k": ..., "maj@k": ..., "tools": {name: [...]}, "kinds":
     {kind: {...}}, "env": {name: [...]}}

avg@n is the mean over problems of the share of right samples. A problem without a valid sample does not count; a
problem with fewer than k samples does not count in the figures of that k. maj@k has no value if right samples are
calls, not answers. `failed` is the number of samples that infrastructure lost. `env` exists if an environment reported
something (env_signals.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ..items import Item
from .bootstrap import LEVEL, Interval, Ratio, intervals
from .env_signals import env_signals
from .majority import ballot, maj_at_k
from .pass_at_k import ks_of, pass_at_k, pass_hat_k
from .tool_use import tool_use

BY_KIND = ("calls", "tool_productivity", "code_ratio", "code_in_correct", "response_tokens")
"""Figures of tool use that are given for each kind of problem."""


def figures(items: Sequence[Item], n: int, *, seed: int = 0, without_calls: Collection[str] = ()) -> dict[str, Any]:
    """Return all figures.

    Args:
        items: The items of one suite under one setting.
        n: Samples that were requested of each problem.
        seed: Seed of the bootstrap and of maj@k's subsets.
        without_calls: Environments in which no call can be made; see `tool_use`.
    """
    ks = ks_of(n)
    average = f"avg@{n}"
    ratios = {average: _mean(items, 1, _share_right)}
    has_answers = _has_answers(items)
    for k in ks:
        ratios[f"pass@{k}"] = _mean(items, k, lambda item, k=k: pass_at_k(item.n, sum(item.correct), k))
        ratios[f"pass^{k}"] = _mean(items, k, lambda item, k=k: pass_hat_k(item.n, sum(item.correct), k))
        if has_answers:
            ratios[f"maj@{k}"] = _mean(
                items, k, lambda item, k=k: maj_at_k(item.answers, item.correct, k, seed=seed + item.index)
            )
        else:
            ratios[f"maj@{k}"] = Ratio(np.zeros(len(items)), np.zeros(len(items)))
    tools = tool_use(items, without_calls)
    env = env_signals(items)
    interval_of = intervals({**ratios, **tools, **env}, seed=seed)
    result: dict[str, Any] = {
        "problems": len(items),
        "samples": sum(item.n for item in items),
        "failed": sum(item.lost for item in items),
        "n": n,
        "level": LEVEL,
        average: list(interval_of[average]),
    }
    for prefix in ("pass@", "pass^", "maj@"):
        result[f"{prefix}k"] = {str(k): list(interval_of[f"{prefix}{k}"]) for k in ks}
    result["tools"] = {name: list(interval_of[name]) for name in tools}
    result["kinds"] = _kinds(items, average, seed, without_calls)
    if env:
        result["env"] = {name: list(interval_of[name]) for name in env}
    return result


def _kinds(items: Sequence[Item], average: str, seed: int, without_calls: Collection[str]) -> dict[str, Any]:
    """Return some figures for each kind of problem; none if there is only one kind."""
    kinds = sorted({item.kind for item in items})
    if len(kinds) < 2:
        return {}
    result = {}
    for kind in kinds:
        of_kind = [item for item in items if item.kind == kind]
        tools = tool_use(of_kind, without_calls)
        ratios = {average: _mean(of_kind, 1, _share_right), **{name: tools[name] for name in BY_KIND}}
        interval_of: dict[str, Interval] = intervals(ratios, seed=seed)
        result[kind] = {"problems": len(of_kind), **{name: list(value) for name, value in interval_of.items()}}
    return result


def _share_right(item: Item) -> float:
    return sum(item.correct) / item.n


def _has_answers(items: Sequence[Item]) -> bool:
    """Return False if samples are right and none of these states an answer.

    What is right is then a call, a patch or a state, which cannot vote.
    """
    right = [answer for item in items for answer, correct in zip(item.answers, item.correct, strict=True) if correct]
    return not right or any(ballot(answer) is not None for answer in right)


def _mean(items: Sequence[Item], k: int, value: Callable[..., float]) -> Ratio:
    """Return the mean of `value` over the problems with at least k valid samples."""
    counts = [item.n >= k for item in items]
    values = [value(item) if has_samples else 0.0 for item, has_samples in zip(items, counts, strict=True)]
    return Ratio(np.array(values, float), np.array(counts, float))
