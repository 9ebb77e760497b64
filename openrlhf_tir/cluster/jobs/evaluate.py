"""Evaluation: held-out problems through the same actors, environments and rewards as training, without filters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...config import Config
from ...config.environments import without_calls
from ...episodes.group_runner import EvalMode
from ...errors import METHOD_REASONS, EngineGone, EvaluationFailed, InfraError
from ...evaluation.scores.pass_at_k import ks_of, pass_at_k, pass_hat_k
from ...logs.progress import bar
from ...pipeline.evaluation import attempt
from ...pipeline.observer import reward_parts
from ...types import GroupKey, GroupMeta, Task
from .measured import EnvResult, EvalResult, HeldOut

if TYPE_CHECKING:
    from ..services import Services

CONCURRENT_GROUPS = 32
EVAL_EPOCH = -1
ACTOR_RETRIES = 120
ALL_KINDS = "all"
"""The kind that all problems are of, those that name none among them."""
MAX_FAILED = 0.02
"""Share of samples that may be lost to infrastructure before the figures are refused: they were of other problems."""


class Samples(Protocol):
    """A EnginePool, or what takes its turn before it."""

    async def run_group(self, key: GroupKey, task: Task, mode: EvalMode) -> tuple[GroupMeta, Any]: ...


async def evaluate_held_out(
    services: Services, cfg: Config, tasks: list[Task], what: str, sampled: EvalResult | None = None
) -> tuple[EvalResult, EvalResult]:
    """Sampled (eval.temperature, n samples) and greedy figures of the engines' current weights. `sampled`: where they
    are known already. Raises EvaluationFailed."""
    n, silent = cfg.eval.n_samples_per_prompt, without_calls(cfg, cfg.eval.max_calls)
    with bar(f"evaluate {what}", (n * (sampled is None) + 1) * len(tasks), services.console) as advance:
        if sampled is None:
            sampled = await evaluate(services.rollout, tasks, mode_of(cfg), silent, tick=lambda: advance(n))
        once = EvalMode(1, 0.0, max_calls=cfg.eval.max_calls)
        greedy = await evaluate(services.rollout, tasks, once, silent, tick=advance)
    return sampled, greedy


async def try_to_evaluate(
    services: Services, cfg: Config, tasks: list[Task], what: str, sampled: EvalResult | None = None
) -> HeldOut | None:
    """The figures, or None when eval.max_tries evaluations failed, which is said: training and export do without."""
    figures = await attempt(
        lambda: evaluate_held_out(services, cfg, tasks, what, sampled),
        what,
        tries=cfg.eval.max_tries,
        timeout_s=cfg.eval.timeout_s,
    )
    if isinstance(figures, EvaluationFailed):
        services.console.print(f"[yellow]no figures of {what}: {figures}", soft_wrap=True, highlight=False)
        return None
    return HeldOut.of(*figures)


def mode_of(cfg: Config, version: int | None = None) -> EvalMode:
    """How evaluation samples: the section `eval`; `version`: of which weights."""
    return EvalMode(cfg.eval.n_samples_per_prompt, cfg.eval.temperature, cfg.eval.top_p, cfg.eval.max_calls, version)


async def evaluate(
    pool: Samples,
    tasks: list[Task],
    mode: EvalMode,
    without_calls: Collection[str] = (),
    *,
    tick: Callable[[], None] = lambda: None,
) -> EvalResult:
    """mode.n samples per task (temperature 0: greedy); `tick` after each. `without_calls`: see summarise. Raises
    EvaluationFailed when more than 2 % of the samples failed."""
    gate = asyncio.Semaphore(CONCURRENT_GROUPS)

    async def one(i: int, task: Task) -> GroupMeta | str:
        """The group's metadata, or the reason why nothing came back."""
        async with gate:
            end = await sampled_group(pool, i, task, mode)
        if isinstance(end, str):
            return end
        tick()
        return end[0]

    async with asyncio.TaskGroup() as tg:
        running = [tg.create_task(one(i, t), name=f"evaluate {i}") for i, t in enumerate(tasks)]
    return summarise(tasks, [t.result() for t in running], mode.n, without_calls)


async def sampled_group(pool: Samples, i: int, task: Task, mode: EvalMode) -> tuple[GroupMeta, Any] | str:
    """A group of the i-th task and its payload, or why nothing came back. An actor that dies is waited for."""
    for _ in range(ACTOR_RETRIES):
        try:
            return await pool.run_group(GroupKey(EVAL_EPOCH, i), task, mode)
        except EngineGone:
            await asyncio.sleep(1)
        except InfraError as e:
            return e.reason
    return EngineGone.reason


def summarise(
    tasks: list[Task], ended: list[GroupMeta | str], n: int, without_calls: Collection[str] = ()
) -> EvalResult:
    """`ended[i]` is of tasks[i]: its group's metadata, or the reason why it has none. `without_calls`: environments in
    which a response makes no call; where all tasks are of these there is no code ratio. Raises EvaluationFailed."""
    reasons: Counter[str] = Counter()
    for end in ended:
        reasons.update({end: n} if isinstance(end, str) else end.failures)
    failed, samples = reasons.total(), n * len(tasks)
    if failed > max(1, MAX_FAILED * samples) or failed == samples:
        why = ", ".join(f"{reason} {k}" for reason, k in reasons.most_common())
        broken = next(
            (
                said
                for m in ended
                if isinstance(m, GroupMeta)
                for reason, said in m.why.items()
                if reason in METHOD_REASONS
            ),
            None,
        )
        remedy = f"The last error: {broken}" if broken else "See the actors' and the servers' logs."
        raise EvaluationFailed(f"{failed} of {samples} evaluation samples failed ({why}). {remedy}", failed, samples)
    measured = [(t, m) for t, m in zip(tasks, ended, strict=True) if isinstance(m, GroupMeta)]
    metas = [m for _, m in measured]
    correct = np.concatenate([m.correct for m in metas]).astype(float)
    code = np.concatenate([m.used_code for m in metas]).astype(bool)
    weights = np.array([len(m.correct) for m in metas], float)
    formats = [(m.stats["format_ok"], len(m.correct)) for m in metas if "format_ok" in m.stats]
    kinds: dict[str, list[GroupMeta]] = {}
    for t, m in measured:
        if m.correct:  # a group without a valid sample says nothing of its kind
            kinds.setdefault(str(t.meta.get("kind", ALL_KINDS)), []).append(m)
    if len(kinds) > 1:  # beside the kinds, all problems; of one kind alone it would say the same twice
        kinds[ALL_KINDS] = [m for m in metas if m.correct]
    return EvalResult(
        accuracy=float(correct.mean()),
        code_ratio=_code_ratio(metas, without_calls),
        format_ok=float(np.average([v for v, _ in formats], weights=[n for _, n in formats])) if formats else np.nan,
        code_correct=float(correct[code].mean()) if code.any() else 0.0,
        samples=len(correct),
        failed=failed,
        calls=float(np.average([m.stats.get("calls", 0.0) for m in metas], weights=weights)),
        response_tokens=float(np.concatenate([m.response_tokens for m in metas]).mean()),
        pass_at=_by_k(metas, n, pass_at_k),
        pass_hat=_by_k(metas, n, pass_hat_k),
        parts=reward_parts(metas, [len(m.correct) for m in metas]),
        by_env=_by_env(tasks, ended, n, without_calls),
        by_kind={
            kind: (float(np.concatenate([m.correct for m in of]).mean()), _code_ratio(of, without_calls))
            for kind, of in sorted(kinds.items())
        },
    )


def _by_k(metas: list[GroupMeta], n: int, figure: Callable[[int, int, int], float]) -> dict[int, float]:
    """k > 1 (1 is the accuracy) -> the mean of `figure` over problems; without a k that none has the samples for."""
    counts = [(len(m.correct), sum(m.correct)) for m in metas]
    enough = {k: [figure(valid, right, k) for valid, right in counts if valid >= k] for k in ks_of(n) if k > 1}
    return {k: float(np.mean(of_problems)) for k, of_problems in enough.items() if of_problems}


def _code_ratio(metas: list[GroupMeta], without_calls: Collection[str]) -> float | None:
    """The share of the samples that called a tool; None where none did and none could, as in rollout_metrics."""
    code = np.concatenate([m.used_code for m in metas]).astype(bool)
    return float(code.mean()) if code.any() or any(m.env not in without_calls for m in metas) else None


def _by_env(
    tasks: list[Task], ended: list[GroupMeta | str], n: int, without_calls: Collection[str]
) -> dict[str, EnvResult]:
    """Environment -> its figures, empty where all tasks are of one. An environment of which nothing could be measured
    has none."""
    ends: dict[str, list[GroupMeta | str]] = {}
    for task, end in zip(tasks, ended, strict=True):
        ends.setdefault(task.env, []).append(end)
    found = {}
    for env, of_env in sorted(ends.items()) if len(ends) > 1 else ():
        metas = [m for m in of_env if isinstance(m, GroupMeta) and m.correct]
        if metas:
            found[env] = EnvResult(
                accuracy=float(np.concatenate([m.correct for m in metas]).astype(float).mean()),
                code_ratio=_code_ratio(metas, without_calls),
                calls=float(np.average([m.stats["calls"] for m in metas], weights=[len(m.correct) for m in metas])),
                samples=sum(len(m.correct) for m in metas),
                failed=sum(n if isinstance(end, str) else sum(end.failures.values()) for end in of_env),
                pass_at=_by_k(metas, n, pass_at_k),
            )
    return found
