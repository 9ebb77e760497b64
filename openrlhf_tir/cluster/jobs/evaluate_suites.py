"""Evaluate the sets of a plan (evaluation/plan.py): items on disk, figures and tables. One session serves all sets and
the whole sweep.

    for each set and setting:  store -> problems that are left -> groups -> items, each on disk as it ends ->
    figures.json

If infrastructure loses more than 2 % of the samples, there are no figures, but the items stay: the same command
continues where it ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config import Config
from ...config.environments import without_calls
from ...errors import USER_CODE_REASONS, EvaluationFailed, InfraError
from ...evaluation.items import Item, item_of
from ...evaluation.plan import Plan, PlannedSet, check_whole, digest_of
from ...evaluation.scores.figures import figures
from ...evaluation.settings import Sampled, made_under
from ...evaluation.store import Store
from ...pipeline.method_errors import MAX_PROMPTS_IN_A_ROW
from ...rollout.group_runner import EvalMode
from ...telemetry.progress import bar
from ...types import Group, Task
from ..say import say
from .evaluate import CONCURRENT_GROUPS, SEE_LOGS, check_failed, groups_at_once, sampled_group

if TYPE_CHECKING:
    from ..engine_pool import EnginePool
    from ..services import Services

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Evaluated:
    """The result of one set under one setting.

    Attributes:
        name: Name of the set.
        setting: Value of the swept setting; None without a sweep.
        figures: The figures.
        directory: Directory of the items.
    """

    name: str
    setting: float | None
    figures: dict[str, Any]
    directory: Path


def tasks_of(plan: Plan) -> dict[str, list[Task]]:
    """Return the problems of each set, with their prompts.

    Raises:
        ConfigError: A published set would be cut.
    """
    from .inputs import prompts_of, tokenizer_of

    cfg = plan.cfg
    tokenizer = tokenizer_of(cfg)
    longest = cfg.data.max_len - cfg.rollout.max_new_tokens
    tasks = {}
    for evaluated_set in plan.sets:
        prompts = prompts_of(cfg, evaluated_set.data, tokenizer, longest)
        warning = check_whole(evaluated_set, prompts.tasks, prompts.dropped, longest)
        if warning:
            log.warning(warning)
        tasks[evaluated_set.name] = [*prompts.tasks]
    return tasks


async def evaluate_plan(services: Services, plan: Plan, tasks: dict[str, list[Task]]) -> list[Evaluated]:
    """Evaluate every set under every setting.

    Raises:
        EvaluationFailed: A set lost too many samples. The sets before it have their figures.
    """
    done = []
    for evaluated_set in plan.sets:
        name = evaluated_set.name
        for sampling in plan.settings:
            value = plan.value(sampling) if plan.swept else None
            what = name if value is None else f"{name} {plan.swept} {value:g}"
            directory = plan.directory(evaluated_set, sampling)
            set_figures = await _evaluate_set(services, plan.cfg, evaluated_set, directory, sampling, tasks[name], what)
            done.append(Evaluated(name, value, set_figures, directory))
    return done


async def _evaluate_set(
    services: Services,
    cfg: Config,
    evaluated_set: PlannedSet,
    directory: Path,
    sampling: Sampled,
    tasks: list[Task],
    what: str,
) -> dict[str, Any]:
    """Evaluate one set under one setting and return its figures. `what` names both for the display."""
    name = evaluated_set.name
    store = Store(directory, made_under(cfg, sampling, name, digest_of(tasks)), tasks)
    try:
        if store.done:
            say(
                services.console,
                f"{what}: {len(store.done)} of {len(tasks)} problems are in {directory} already",
            )
        with bar(f"evaluate {what}", len(store.left), services.console) as advance:
            await sample(
                services.pool,
                store,
                name,
                sampling,
                at_once=groups_at_once(cfg, sampling.n),
                tick=advance,
            )
        check_lost(store.items, sampling.n, directory)
        silent = without_calls(cfg, sampling.max_calls)
        set_figures = figures(store.items, sampling.n, seed=cfg.train.seed, without_calls=silent) | {
            "rows": len(tasks),
            "published": evaluated_set.published,
            "facts": list(evaluated_set.facts),
        }
        store.finish(set_figures)
        return set_figures
    finally:
        store.close()


async def sample(
    pool: EnginePool,
    store: Store,
    suite: str,
    sampling: Sampled,
    *,
    at_once: int = CONCURRENT_GROUPS,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Sample every problem that is left. Each item is on disk when `tick` is called.

    Args:
        pool: The engines.
        store: The items.
        suite: Name of the suite.
        sampling: The setting.
        at_once: Problems that are sampled at the same time.
        tick: Called after each problem.

    Raises:
        EvaluationFailed: MAX_PROMPTS_IN_A_ROW consecutive problems were lost to the method's own code.
    """
    gate = asyncio.Semaphore(at_once)
    mode = EvalMode(sampling.n, sampling.temperature, sampling.top_p, sampling.max_calls)
    broken = 0

    async def sample_problem(index: int) -> None:
        nonlocal broken
        async with gate:
            sampled, method_error = await _group(pool, index, store.tasks[index], mode)
            item = item_of(suite, index, store.tasks[index], sampled, sampling.n)
            store.add(item)
        broken = broken + 1 if method_error and not item.n else 0
        if broken >= MAX_PROMPTS_IN_A_ROW:
            raise EvaluationFailed(
                f"{broken} consecutive problems of {suite} cannot be graded. The last error: {method_error}",
                sampling.n * broken,
                sampling.n * broken,
            )
        tick()

    async with asyncio.TaskGroup() as group:
        for index in store.left:
            group.create_task(sample_problem(index), name=f"evaluate {suite} {index}")


async def _group(pool: EnginePool, index: int, task: Task, mode: EvalMode) -> tuple[Group | str, str]:
    """Return the trajectories, or the reason why there are none; and the error of the method's own code, "" if none."""
    end = await sampled_group(pool, index, task, mode)
    if isinstance(end, str):
        return end, ""
    meta, payload = end
    method_error = next((message for reason, message in meta.why.items() if reason in USER_CODE_REASONS), "")
    try:
        (group,) = await pool.fetch([payload])
    except InfraError as error:
        return error.reason, method_error
    return group, method_error


def check_lost(items: list[Item], n: int, directory: Path) -> None:
    """Check that infrastructure lost at most MAX_FAILED of the samples, `n` for each item.

    Raises:
        EvaluationFailed: It lost more.
    """
    reasons: Counter[str] = Counter()
    for item in items:
        reasons.update(item.failures)
    if reasons:
        kept = f"Finished problems stay in {directory}: the same command samples only the others."
        check_failed(reasons, n * len(items), f"{kept} {SEE_LOGS}")
