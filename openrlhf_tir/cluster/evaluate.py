"""Evaluation: held-out problems through the same actors, environments and rewards as training, without filters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..episodes.group import EvalMode
from ..errors import METHOD_REASONS, EngineGone, EvaluationFailed, InfraError
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
    """n samples per task at `temperature` (0: greedy); `tick` after each. Raises EvaluationFailed when more than 2 % of the samples failed."""
    gate = asyncio.Semaphore(CONCURRENT_GROUPS)

    async def one(i: int, task: Task) -> GroupMeta | str:
        """The group's metadata, or the reason why nothing came back."""
        async with gate:
            for _ in range(ACTOR_RETRIES):
                try:
                    meta, _ = await pool.run_group(GroupKey(EVAL_EPOCH, i), task, EvalMode(n, temperature))
                    break
                except EngineGone:
                    await asyncio.sleep(1)
                except InfraError as e:
                    return e.reason
            else:
                return EngineGone.reason
        tick()
        return meta

    async with asyncio.TaskGroup() as tg:
        running = [tg.create_task(one(i, t), name=f"evaluate {i}") for i, t in enumerate(tasks)]
    return summarise(tasks, [t.result() for t in running], n)


def summarise(tasks: list[Task], ended: list[GroupMeta | str], n: int) -> Figures:
    """`ended[i]` is of tasks[i]: its group's metadata, or the reason why it has none. Raises EvaluationFailed."""
    reasons: Counter[str] = Counter()
    for end in ended:
        reasons.update({end: n} if isinstance(end, str) else end.failures)
    failed, samples = reasons.total(), n * len(tasks)
    if failed > max(1, MAX_FAILED * samples) or failed == samples:
        why = ", ".join(f"{reason} {k}" for reason, k in reasons.most_common())
        broken = next((said for m in ended if isinstance(m, GroupMeta) for reason, said in m.why.items() if reason in METHOD_REASONS), None)
        remedy = f"The last error: {broken}" if broken else "See the actors' and the servers' logs."
        raise EvaluationFailed(f"{failed} of {samples} evaluation samples failed ({why}). {remedy}", failed, samples)
    measured = [(t, m) for t, m in zip(tasks, ended, strict=True) if isinstance(m, GroupMeta)]
    metas = [m for _, m in measured]
    correct = np.concatenate([m.correct for m in metas]).astype(float)
    code = np.concatenate([m.used_code for m in metas]).astype(bool)
    weights = np.array([len(m.correct) for m in metas], float)
    formats = np.array([m.stats.get("format_ok", np.nan) for m in metas])
    kinds: dict[str, list[tuple[float, float]]] = {}
    for t, m in measured:
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
