"""Figures: all items of one evaluation -> what it came to, with intervals, as JSON can hold it.

    {"problems", "samples", "failed", "n", "level",
     "avg@n": [value, low, high], "pass@k": {k: [...]}, "pass^k": ..., "maj@k": ..., "tools": {name: [...]}, "kinds":
     {kind: {...}}, "env": {name: [...]}}

avg@n is the mean over problems of the share of right samples; a problem without a valid sample has no say, one with
fewer than k none in the figures of that k. maj@k has no figure where what is right are calls, not answers. `failed`
counts what infrastructure lost; `env` is there where the environment said something of it (env_signals.py)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ..items import Item
from .bootstrap import LEVEL, Interval, Ratio, intervals
from .env_signals import env_signals
from .majority import ballot, maj_at_k
from .pass_at_k import ks_of, pass_at_k, pass_hat_k
from .tool_use import tool_use

BY_KIND = ("calls", "tool_productivity", "code_ratio", "code_in_correct", "response_tokens")


def figures(items: Sequence[Item], n: int, *, seed: int = 0, without_calls: Collection[str] = ()) -> dict[str, Any]:
    """`n`: samples that were asked of each problem. `without_calls`: see tool_use."""
    ks, average = ks_of(n), f"avg@{n}"
    ratios = {average: _over(items, 1, lambda i: sum(i.correct) / i.n)}
    votes, nobody = _votes(items), Ratio(np.zeros(len(items)), np.zeros(len(items)))
    for k in ks:
        ratios[f"pass@{k}"] = _over(items, k, lambda i, k=k: pass_at_k(i.n, sum(i.correct), k))
        ratios[f"pass^{k}"] = _over(items, k, lambda i, k=k: pass_hat_k(i.n, sum(i.correct), k))
        ratios[f"maj@{k}"] = (
            _over(items, k, lambda i, k=k: maj_at_k(i.answers, i.correct, k, seed=seed + i.index)) if votes else nobody
        )
    tools, said = tool_use(items, without_calls), env_signals(items)
    found = intervals({**ratios, **tools, **said}, seed=seed)
    return {
        "problems": len(items),
        "samples": sum(i.n for i in items),
        "failed": sum(i.lost for i in items),
        "n": n,
        "level": LEVEL,
        average: _told(found[average]),
        **{what: {str(k): _told(found[f"{what[:-1]}{k}"]) for k in ks} for what in ("pass@k", "pass^k", "maj@k")},
        "tools": {name: _told(found[name]) for name in tools},
        "kinds": _kinds(items, average, seed, without_calls),
        **({"env": {name: _told(found[name]) for name in said}} if said else {}),
    }


def _kinds(items: Sequence[Item], average: str, seed: int, without_calls: Collection[str]) -> dict[str, Any]:
    """Per kind of problem; nothing where there is one kind."""
    kinds = sorted({i.kind for i in items})
    out = {}
    for kind in kinds if len(kinds) > 1 else ():
        of_kind = [i for i in items if i.kind == kind]
        tools = tool_use(of_kind, without_calls)
        found = intervals(
            {average: _over(of_kind, 1, lambda i: sum(i.correct) / i.n), **{name: tools[name] for name in BY_KIND}},
            seed=seed,
        )
        out[kind] = {"problems": len(of_kind), **{name: _told(interval) for name, interval in found.items()}}
    return out


def _votes(items: Sequence[Item]) -> bool:
    """False where samples are right and none of these states an answer: what is right is a call, a patch or a state
    then, and has no vote."""
    right = [answer for i in items for answer, ok in zip(i.answers, i.correct, strict=True) if ok]
    return not right or any(ballot(answer) is not None for answer in right)


def _over(items: Sequence[Item], k: int, value: Any) -> Ratio:
    """The mean of `value` over the problems with at least k valid samples."""
    has = [i.n >= k for i in items]
    return Ratio(
        np.array([value(i) if ok else 0.0 for i, ok in zip(items, has, strict=True)], float), np.array(has, float)
    )


def _told(interval: Interval) -> list[float | None]:
    return [*interval]
