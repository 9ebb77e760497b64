"""Suites: a plan (evaluation/plan.py) and engines that are up -> items on disk, figures and tables. One session serves
all sets and the whole sweep.

    per set and setting:  store -> problems that are left -> groups -> items, each on disk as it ends -> figures.json
Infrastructure that loses more than 2 % of the samples costs the figures, never the items: the same command goes on
where it ended."""

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
from ...episodes.group_runner import EvalMode
from ...errors import METHOD_REASONS, EvaluationFailed, InfraError
from ...evaluation.items import Item, item_of
from ...evaluation.plan import Asked, Plan, check_whole, digest_of
from ...evaluation.scores.figures import figures
from ...evaluation.settings import Sampled, made_under
from ...evaluation.store import Store
from ...logs.progress import bar
from ...types import Group, Task
from .evaluate import CONCURRENT_GROUPS, MAX_FAILED, sampled_group

if TYPE_CHECKING:
    from ..engine_pool import EnginePool
    from ..services import Services

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Evaluated:
    """What one set came to under one setting."""

    name: str
    setting: float | None
    """Value of what is swept; None without a sweep."""
    figures: dict[str, Any]
    directory: Path


def tasks_of(plan: Plan) -> dict[str, list[Task]]:
    """The problems of each set as they are asked. Raises ConfigError where a published set would be cut."""
    from .inputs import prompts_of, tokenizer_of

    cfg = plan.cfg
    tokenizer = tokenizer_of(cfg)
    longest = cfg.data.max_len - cfg.rollout.max_new_tokens
    found = {}
    for asked in plan.asked:
        prompts = prompts_of(cfg, asked.data, tokenizer, longest)
        if said := check_whole(asked, prompts.tasks, prompts.dropped, longest):
            log.warning(said)
        found[asked.name] = [*prompts.tasks]
    return found


async def evaluate_plan(services: Services, plan: Plan, tasks: dict[str, list[Task]]) -> list[Evaluated]:
    """Raises EvaluationFailed for the first set that lost too many samples; those before it have their figures."""
    done = []
    for asked in plan.asked:
        for how in plan.settings:
            setting = plan.value(how) if plan.swept else None
            what = asked.name if setting is None else f"{asked.name} {plan.swept} {setting:g}"
            found = await _one(services, plan.cfg, asked, plan.directory(asked, how), how, tasks[asked.name], what)
            done.append(Evaluated(asked.name, setting, found, plan.directory(asked, how)))
    return done


async def _one(
    services: Services, cfg: Config, asked: Asked, directory: Path, how: Sampled, tasks: list[Task], what: str
) -> dict[str, Any]:
    store = Store(directory, made_under(cfg, how, asked.name, digest_of(tasks)), tasks)
    try:
        if store.done:
            services.console.print(
                f"{what}: {len(store.done)} of {len(tasks)} problems are in {directory} already",
                soft_wrap=True,
                highlight=False,
            )
        with bar(f"evaluate {what}", len(store.left), services.console) as advance:
            await sample(services.pool, store, asked.name, how, cfg.reward.max_failed_groups, tick=advance)
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
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Samples every problem that is left; each item is on disk when `tick` is called.

    Raises EvaluationFailed once `max_broken` problems one after the other were lost to an error of the method's own
    code."""
    gate = asyncio.Semaphore(CONCURRENT_GROUPS)
    mode = EvalMode(how.n, how.temperature, how.top_p, how.max_calls)
    broken = 0

    async def one(i: int) -> None:
        nonlocal broken
        async with gate:
            sampled, why = await _group(pool, i, store.tasks[i], mode)
            item = item_of(suite, i, store.tasks[i], sampled, how.n)
            store.add(item)
        broken = broken + 1 if why and not item.n else 0
        if broken >= max_broken:
            raise EvaluationFailed(
                f"{broken} problems of {suite} one after the other cannot be judged. The last error: {why}",
                how.n * broken,
                how.n * broken,
            )
        tick()

    async with asyncio.TaskGroup() as tg:
        for i in store.left:
            tg.create_task(one(i), name=f"evaluate {suite} {i}")


async def _group(pool: EnginePool, i: int, task: Task, mode: EvalMode) -> tuple[Group | str, str]:
    """The trajectories, or the reason why there are none; and what the method's own code said where it failed."""
    end = await sampled_group(pool, i, task, mode)
    if isinstance(end, str):
        return end, ""
    meta, payload = end
    why = next((said for reason, said in meta.why.items() if reason in METHOD_REASONS), "")
    try:
        (group,) = await pool.fetch([payload])
    except InfraError as e:
        return e.reason, why
    return group, why


def check_lost(items: list[Item], n: int, directory: Path) -> None:
    """Raises EvaluationFailed where more than 2 % of the samples were lost."""
    reasons: Counter[str] = Counter()
    for item in items:
        reasons.update(item.failures)
    lost, samples = reasons.total(), n * len(items)
    if lost > max(1, MAX_FAILED * samples) or (lost and lost == samples):
        why = ", ".join(f"{reason} {k}" for reason, k in reasons.most_common())
        raise EvaluationFailed(
            f"{lost} of {samples} evaluation samples failed ({why}). What is whole stays in {directory}: the same"
            " command samples only the rest. See the actors' and the servers' logs.",
            lost,
            samples,
        )
