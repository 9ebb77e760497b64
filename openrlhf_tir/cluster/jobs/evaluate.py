"""Evaluate held-out problems by the same actors, environments and rewards as in training, without filters."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from ...config import Config
from ...config.environments import without_calls
from ...errors import USER_CODE_REASONS, EngineGone, EvaluationFailed, InfraError, TaskRefused
from ...evaluation.scores.pass_at_k import ks_of, pass_at_k, pass_hat_k
from ...pipeline.evaluation import attempt
from ...pipeline.group_metrics import reward_parts
from ...rollout.group_runner import EvalMode
from ...telemetry.progress import bar
from ...types import GroupKey, GroupMeta, Task
from ..say import say
from .measured import EnvResult, EvalResult, HeldOut

if TYPE_CHECKING:
    from ...pipeline.colocation.time_shared import TimeSharedRollout
    from ..engine_pool import EnginePool
    from ..services import Services

CONCURRENT_GROUPS = 32
"""Fewest groups that run at the same time. While some wait for an environment, the others keep an engine busy."""
EVAL_EPOCH = -1
"""Epoch in the keys of evaluation groups."""
ACTOR_RETRIES = 120
"""How often a group waits for the replacement of a dead actor, a second each time."""
ALL_KINDS = "all"
"""The kind of all problems together, and of a problem that names none."""
MAX_FAILED = 0.02
"""Share of samples that infrastructure may lose before the figures are refused: they would describe other problems."""
SEE_LOGS = "See the actors' and the servers' logs."


async def evaluate_held_out(
    services: Services, cfg: Config, tasks: list[Task], what: str, sampled: EvalResult | None = None
) -> tuple[EvalResult, EvalResult]:
    """Return the figures of the engines' current weights: sampled (eval.temperature, n samples) and greedy.

    Args:
        services: The session.
        cfg: The configuration.
        tasks: The held-out problems.
        what: Name of the model, for the display.
        sampled: The sampled figures, if they are known already.

    Raises:
        EvaluationFailed: Infrastructure lost too many samples.
    """
    samples_per_problem = cfg.eval.n_samples_per_prompt
    no_call_environments = without_calls(cfg, cfg.eval.max_calls)
    with bar(
        f"evaluate {what}", (samples_per_problem * (sampled is None) + 1) * len(tasks), services.console
    ) as advance:
        if sampled is None:
            sampled = await evaluate(
                services.rollout,
                tasks,
                mode_of(cfg),
                no_call_environments,
                at_once=groups_at_once(cfg, samples_per_problem),
                tick=lambda: advance(samples_per_problem),
            )
        greedy = await evaluate(
            services.rollout,
            tasks,
            EvalMode(1, 0.0, max_calls=cfg.eval.max_calls),
            no_call_environments,
            at_once=groups_at_once(cfg, 1),
            tick=advance,
        )
    return sampled, greedy


async def try_to_evaluate(
    services: Services, cfg: Config, tasks: list[Task], what: str, sampled: EvalResult | None = None
) -> HeldOut | None:
    """Return the figures, or None if every attempt failed.

    A failure is printed, and does not end the run: training and export work without figures.
    """
    figures = await attempt(lambda: evaluate_held_out(services, cfg, tasks, what, sampled), what)
    if isinstance(figures, EvaluationFailed):
        say(services.console, f"no figures of {what}: {figures}", "yellow")
        return None
    return HeldOut.of(*figures)


def groups_at_once(cfg: Config, samples: int) -> int:
    """Return how many groups of so many samples fill all engines."""
    return max(CONCURRENT_GROUPS, cfg.vllm.num_engines * cfg.vllm.max_num_seqs // samples)


def mode_of(cfg: Config, version: int | None = None) -> EvalMode:
    """Return how an evaluation samples: by the section `eval`, with the weights of `version` if it is given."""
    return EvalMode(cfg.eval.n_samples_per_prompt, cfg.eval.temperature, cfg.eval.top_p, cfg.eval.max_calls, version)


async def evaluate(
    pool: EnginePool | TimeSharedRollout,
    tasks: list[Task],
    mode: EvalMode,
    without_calls: Collection[str] = (),
    *,
    at_once: int = CONCURRENT_GROUPS,
    tick: Callable[[], None] = lambda: None,
) -> EvalResult:
    """Sample and evaluate problems.

    Args:
        pool: Runs the groups.
        tasks: The problems.
        mode: Samples per problem, temperature (0 is greedy) and limits.
        without_calls: Environments in which a response makes no call; see `summarise`.
        at_once: Problems that are sampled at the same time; see `groups_at_once`.
        tick: Called after each problem.

    Raises:
        EvaluationFailed: More than MAX_FAILED of the samples failed.
    """
    gate = asyncio.Semaphore(at_once)

    async def evaluate_problem(index: int, task: Task) -> GroupMeta | str:
        """Return the group's metadata, or the reason why there is none."""
        async with gate:
            end = await sampled_group(pool, index, task, mode)
        if isinstance(end, str):
            return end
        tick()
        return end[0]

    async with asyncio.TaskGroup() as group:
        running = [
            group.create_task(evaluate_problem(index, task), name=f"evaluate {index}")
            for index, task in enumerate(tasks)
        ]
    return summarise(tasks, [problem.result() for problem in running], mode.n, without_calls)


async def sampled_group(
    pool: EnginePool | TimeSharedRollout, index: int, task: Task, mode: EvalMode
) -> tuple[GroupMeta, Any] | str:
    """Return a group of the task and its payload, or the reason why there is none.

    If an actor dies, its replacement is waited for.
    """
    for _ in range(ACTOR_RETRIES):
        try:
            return await pool.run_group(GroupKey(EVAL_EPOCH, index), task, mode)
        except EngineGone:
            await asyncio.sleep(1)
        except InfraError as error:
            return error.reason
    return EngineGone.reason


def check_failed(reasons: Counter[str], samples: int, remedy: str) -> None:
    """Check that at most MAX_FAILED of the samples failed, and not all of them.

    Args:
        reasons: Number of failed samples by reason.
        samples: Number of all samples.
        remedy: Sentences that end the message.

    Raises:
        EvaluationFailed: More failed.
    """
    failed = reasons.total()
    if failed > max(1, MAX_FAILED * samples) or failed == samples:
        counts = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
        raise EvaluationFailed(f"{failed} of {samples} evaluation samples failed ({counts}). {remedy}", failed, samples)


def summarise(
    tasks: list[Task], ended: list[GroupMeta | str], n: int, without_calls: Collection[str] = ()
) -> EvalResult:
    """Return the figures of an evaluation.

    Args:
        tasks: The problems.
        ended: For each problem the metadata of its group, or the reason why it has none.
        n: Samples per problem.
        without_calls: Environments in which a response makes no call. If all problems are of these, there is no code
            ratio.

    Raises:
        EvaluationFailed: More than MAX_FAILED of the samples failed.
    """
    reasons: Counter[str] = Counter()
    for end in ended:
        reasons.update({end: n} if isinstance(end, str) else end.failures)
    errors = (
        message
        for end in ended
        if isinstance(end, GroupMeta)
        for reason, message in end.why.items()
        if reason in USER_CODE_REASONS or reason == TaskRefused.reason
    )
    error = next(errors, None)
    remedy = f"More samples would meet it again: {error}" if error else SEE_LOGS
    check_failed(reasons, n * len(tasks), remedy)
    measured = [(task, meta) for task, meta in zip(tasks, ended, strict=True) if isinstance(meta, GroupMeta)]
    metas = [meta for _, meta in measured]
    correct = np.concatenate([meta.correct for meta in metas])
    code = np.concatenate([meta.used_code for meta in metas]).astype(bool)
    kinds: dict[str, list[GroupMeta]] = {}
    for task, meta in measured:
        if meta.correct:  # A group without a valid sample says nothing about its kind.
            kinds.setdefault(str(task.meta.get("kind", ALL_KINDS)), []).append(meta)
    if len(kinds) > 1:  # With a single kind, all problems together would be the same figures again.
        kinds[ALL_KINDS] = [meta for meta in metas if meta.correct]
    return EvalResult(
        **_figures(ended, n, without_calls),
        format_ok=_mean_stat(metas, "format_ok"),
        code_correct=float(correct[code].mean()) if code.any() else 0.0,
        response_tokens=float(np.concatenate([meta.response_tokens for meta in metas]).mean()),
        pass_hat=_by_k(metas, n, pass_hat_k),
        parts=reward_parts(metas),
        by_env=_by_env(tasks, ended, n, without_calls),
        by_kind={
            kind: (
                float(np.concatenate([meta.correct for meta in of_kind]).mean()),
                _code_ratio(of_kind, without_calls),
            )
            for kind, of_kind in sorted(kinds.items())
        },
    )


def _figures(ended: list[GroupMeta | str], n: int, without_calls: Collection[str]) -> dict[str, Any]:
    """Return the fields of EnvResult for groups with at least one valid sample; see `summarise`."""
    metas = [end for end in ended if isinstance(end, GroupMeta)]
    correct = np.concatenate([meta.correct for meta in metas])
    return {
        "accuracy": float(correct.mean()),
        "code_ratio": _code_ratio(metas, without_calls),
        "samples": len(correct),
        "failed": sum(n if isinstance(end, str) else sum(end.failures.values()) for end in ended),
        "calls": _mean_stat(metas, "calls"),
        "pass_at": _by_k(metas, n, pass_at_k),
    }


def _mean_stat(metas: list[GroupMeta], name: str) -> float:
    """Return the mean over all valid samples of a figure that groups report; NaN if none does."""
    reporting = [meta for meta in metas if name in meta.stats]
    if not reporting:
        return math.nan
    means = [meta.stats[name] for meta in reporting]
    return float(np.average(means, weights=[len(meta.correct) for meta in reporting]))


def _by_k(metas: list[GroupMeta], n: int, figure: Callable[[int, int, int], float]) -> dict[int, float]:
    """Return k -> mean of `figure` over the problems with at least k valid samples, for k > 1 (k = 1 is the
    accuracy)."""
    counts = [(len(meta.correct), sum(meta.correct)) for meta in metas]
    by_k = {k: [figure(valid, right, k) for valid, right in counts if valid >= k] for k in ks_of(n) if k > 1}
    return {k: float(np.mean(of_problems)) for k, of_problems in by_k.items() if of_problems}


def _code_ratio(metas: list[GroupMeta], without_calls: Collection[str]) -> float | None:
    """Return the share of samples that called a tool; None if none did and none could, as in rollout_metrics."""
    code = np.concatenate([meta.used_code for meta in metas]).astype(bool)
    can_call = any(meta.env not in without_calls for meta in metas)
    return float(code.mean()) if code.any() or can_call else None


def _by_env(
    tasks: list[Task], ended: list[GroupMeta | str], n: int, without_calls: Collection[str]
) -> dict[str, EnvResult]:
    """Return the figures of each environment; {} if all problems are of one.

    An environment of which nothing could be measured is left out.
    """
    ends: dict[str, list[GroupMeta | str]] = {}
    for task, end in zip(tasks, ended, strict=True):
        ends.setdefault(task.env, []).append(end)
    if len(ends) == 1:
        return {}
    return {
        env: EnvResult(**_figures(env_ends, n, without_calls))
        for env, env_ends in sorted(ends.items())
        if any(isinstance(end, GroupMeta) and end.correct for end in env_ends)
    }
