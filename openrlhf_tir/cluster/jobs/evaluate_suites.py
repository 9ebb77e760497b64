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
    for asked in plan.sets:
        for how in plan.settings:
            setting = plan.value(how) if plan.swept else None
            what = asked.name if setting is None else f"{asked.name} {plan.swept} {setting:g}"
            found = await _evaluate_set(
                services, plan.cfg, asked, plan.directory(asked, how), how, tasks[asked.name], what
            )
            done.append(Evaluated(asked.name, setting, found, plan.directory(asked, how)))
    return done


async def _evaluate_set(
    services: Services, cfg: Config, asked: PlannedSet, directory: Path, how: Sampled, tasks: list[Task], what: str
) -> dict[str, Any]:
    store = Store(directory, made_under(cfg, how, asked.name, digest_of(tasks)), tasks)
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
                asked.name,
                how,
                MAX_PROMPTS_IN_A_ROW,
                at_once=groups_at_once(cfg, how.n),
                tick=advance,
            )
        check_lost(store.items, how.n, directory)
        silent = without_calls(cfg, how.max_calls)
        found = figures(store.items, how.n, seed=cfg.train.seed, without_calls=silent) | {
            "rows": len(tasks),
            "published": asked.published,
            "facts": list(asked.facts),
        }
        store.finish(found)
        return found
    finally:
        store.close()


async def sample(
    pool: EnginePool,
    store: Store,
    suite: str,
    how: Sampled,
    max_broken: int = 3,
    *,
    at_once: int = CONCURRENT_GROUPS,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Sample every problem that is left. Each item is on disk when `tick` is called.

    Args:
        pool: The engines.
        store: The items.
        suite: Name of the suite.
        how: The setting.
        max_broken: Consecutive problems that an error of the method's own code may lose.
        at_once: Problems that are sampled at the same time.
        tick: Called after each problem.

    Raises:
        EvaluationFailed: `max_broken` consecutive problems were lost to the method's own code.
    """
    gate = asyncio.Semaphore(at_once)
    mode = EvalMode(how.n, how.temperature, how.top_p, how.max_calls)
    broken = 0

    async def sample_problem(index: int) -> None:
        nonlocal broken
        async with gate:
            sampled, method_error = await _group(pool, index, store.tasks[index], mode)
            item = item_of(suite, index, store.tasks[index], sampled, how.n)
            store.add(item)
        broken = broken + 1 if method_error and not item.n else 0
        if broken >= max_broken:
            raise EvaluationFailed(
                f"{broken} consecutive problems of {suite} cannot be graded. The last error: {method_error}",
                how.n * broken,
                how.n * broken,
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
