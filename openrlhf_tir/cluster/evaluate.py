"""Evaluation: held-out problems through the same actors, environments and rewards as training, without filters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..episodes.group import EvalMode
from ..errors import METHOD_REASONS, EngineError, EngineGone, MethodBroken
from ..types import GroupKey, GroupMeta, Task
from .pool import RolloutPool

CONCURRENT_GROUPS = 32
EVAL_EPOCH = -1
ACTOR_RETRIES = 120
MAX_FAILED = 0.02
"""Share of samples that may be lost to infrastructure before the figures are refused: they would be of other problems."""


@dataclass(slots=True)
class Figures:
    """Fractions over all valid samples. `failed` counts samples lost to infrastructure, which are no part of the fractions."""

    accuracy: float
    code_ratio: float
    format_ok: float
    code_correct: float
    samples: int
    failed: int
    by_kind: dict[str, tuple[float, float]] = field(default_factory=dict)


async def evaluate(pool: RolloutPool, tasks: list[Task], *, n: int, temperature: float, tick: Callable[[], None] = lambda: None) -> Figures:
    """n samples per task at `temperature` (0: greedy); `tick` after each. Raises EngineError when more than 2 % of the samples failed."""
    gate = asyncio.Semaphore(CONCURRENT_GROUPS)

    async def one(i: int, task: Task) -> GroupMeta:
        async with gate:
            for _ in range(ACTOR_RETRIES):
                try:
                    meta, _ = await pool.run_group(GroupKey(EVAL_EPOCH, i), task, EvalMode(n, temperature))
                    break
                except EngineGone:
                    await asyncio.sleep(1)
            else:
                raise EngineError(f"No rollout actor could evaluate for {ACTOR_RETRIES} s. See the actors' logs.")
        tick()
        return meta

    async with asyncio.TaskGroup() as tg:
        running = [tg.create_task(one(i, t), name=f"evaluate {i}") for i, t in enumerate(tasks)]
    return summarise(tasks, [t.result() for t in running], n)


def summarise(tasks: list[Task], metas: list[GroupMeta], n: int) -> Figures:
    failed = sum(sum(m.failures.values()) for m in metas)
    if failed > max(1, MAX_FAILED * n * len(tasks)):
        reasons = {k for m in metas for k in m.failures}
        if error := next((why for m in metas for reason, why in m.why.items() if reason in METHOD_REASONS), None):
            raise MethodBroken(f"{failed} of {n * len(tasks)} evaluation samples failed ({', '.join(sorted(reasons))}). The last error: {error}")
        raise EngineError(
            f"{failed} of {n * len(tasks)} evaluation samples failed by infrastructure ({', '.join(sorted(reasons))}). "
            "Look at the environment server's log and try again."
        )
    correct = np.concatenate([m.correct for m in metas]).astype(float)
    code = np.concatenate([m.used_code for m in metas]).astype(bool)
    weights = np.array([len(m.correct) for m in metas], float)
    formats = np.array([m.stats.get("format_ok", np.nan) for m in metas])
    kinds: dict[str, list[tuple[float, float]]] = {}
    for t, m in zip(tasks, metas, strict=True):
        kinds.setdefault(str(t.meta.get("kind", "all")), []).extend(zip(m.correct, m.used_code, strict=True))
    return Figures(
        accuracy=float(correct.mean()),
        code_ratio=float(code.mean()),
        format_ok=float(np.average(formats, weights=weights)),
        code_correct=float(correct[code].mean()) if code.any() else 0.0,
        samples=len(correct),
        failed=failed,
        by_kind={k: (float(np.mean([c for c, _ in v])), float(np.mean([u for _, u in v]))) for k, v in sorted(kinds.items())},
    )
