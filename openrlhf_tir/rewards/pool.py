"""Compute the rewards of trajectories beside the rollout: quick rewards in this process, slow work in worker processes.

    trajectory, task --> RewardPool.score --> RewardParts(reward, correct, parts)
                             |- a registered reward    is called here; it awaits context.equal, context.run_in_worker
                             |- a reward of the user   is called as a whole in a worker process
                             '- "remote"               goes to a reward server or file, in batches

    a check uses up reward.verify_timeout_s of CPU      the answers count as unequal: the answer made it run on and on;
                                                        parts["verify_timeout"] counts it
    a check takes twelve times as long by the clock     VerifierError: the host is starved
    without having had that much CPU
    a worker dies twice                                 VerifierError; RewardError, if user code crashed in it
    a reward raises, or returns no finite number        RewardError, with file and line

A VerifierError fails the trajectory, a RewardError its whole group (rollout/sample_selection.py). No fault becomes a
reward of 0.

With `reward.weights` several rewards are added up. `parts` then has the value of each of them under its name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..config import Reward
from ..config.environments import Environment, entry_of
from ..config.integrations.reward_signatures import Convention, convention_of
from ..config.sections.reward import REMOTE, WALL_NAME
from ..errors import RewardError
from ..types import CounterUpdate, RewardParts, Task, Trajectory
from ..user_code import plugins
from ..waiting.deadlines import Deadline
from . import REWARD, RewardFn, accept, call, load
from .checking import answer_check, symbolic
from .context import INLINE_SERVICES, RewardContext
from .limits import RewardLimits
from .own import OwnReward, Prepare
from .remote.batches import RemoteReward
from .workers import CpuSpent, Limits, Workers

VERDICTS_KEPT = 4096
"""Number of verdicts on pairs of answers that are kept."""
LONGEST_KEPT = 1000
"""Characters of a pair of answers whose verdict is kept, at most."""


@dataclass(frozen=True, slots=True)
class _Component:
    """One of the rewards that are added up.

    Attributes:
        name: Its name in the configuration.
        weight: Its factor in the sum.
        function: The reward.
        convention: The signature for which it is written.
    """

    name: str
    weight: float
    function: RewardFn
    convention: Convention

    @property
    def part(self) -> str:
        """Name of its value among the parts."""
        return self.name.rpartition(":")[2]


def components(cfg: Reward) -> list[_Component]:
    """Return the rewards of `reward.weights` in its order, or `reward.name` alone.

    Raises:
        ConfigError: A reward cannot be loaded.
    """
    functions = {name: load(name) for name in cfg.used}
    return [_Component(name, cfg.used[name], function, convention_of(function)) for name, function in functions.items()]


class AnswerChecker:
    """Compares answers, and keeps the verdicts of computer algebra: the responses of a group often agree.

    It belongs to one event loop.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._verdicts: OrderedDict[tuple[str, str], bool] = OrderedDict()
        """Pair of answers -> equal or not; the pair that was asked for last comes last."""

    async def equal(self, answer: str, gold: str) -> bool:
        """Return True if both mean the same.

        Raises:
            CpuSpent: The comparison used up its CPU. No verdict is kept.
            VerifierError: The comparison missed its deadline, or its worker died twice.
        """
        verdict = answer_check.quick_equal(answer, gold)
        if verdict is not None:
            return verdict
        pair = answer_check.clean(answer), answer_check.clean(gold)
        if len(pair[0]) + len(pair[1]) > LONGEST_KEPT:
            return await self._workers.run(symbolic.equal, *pair)
        if pair not in self._verdicts:
            self._verdicts[pair] = await self._workers.run(symbolic.equal, *pair)
        self._verdicts.move_to_end(pair)
        if len(self._verdicts) > VERDICTS_KEPT:
            self._verdicts.popitem(last=False)
        return self._verdicts[pair]


class PooledServices:
    """What one call of a reward may await (context.RewardServices), done by the pool's worker processes.

    Attributes:
        verify_timeout: True once a comparison of this call has used up its CPU.
    """

    def __init__(self, checker: AnswerChecker, workers: Workers, model: Scores | None) -> None:
        self._checker = checker
        self._workers = workers
        self._model = model
        self.verify_timeout = False

    async def equal(self, answer: str, gold: str) -> bool:
        """See RewardContext.equal."""
        try:
            return await self._checker.equal(answer, gold)
        except CpuSpent:
            # The wall clock has a limit of its own, so the host is not slow: the answer itself, such as a tower of
            # powers, makes the comparison explode. It is the model's doing, hence data.
            self.verify_timeout = True
            return False

    async def run_in_worker(self, function: Callable[..., Any], *args: Any) -> Any:
        """See RewardContext.run_in_worker."""
        return await self._workers.run(function, *args)

    async def model_score(self, trajectory: Trajectory) -> float:
        """See RewardContext.model_score."""
        if self._model is None:
            return await INLINE_SERVICES.model_score(trajectory)
        return await self._model.score(trajectory)


class Scores(Protocol):
    """The reward model; see cluster/reward_models/replicas.py."""

    async def score(self, trajectory: Trajectory) -> float:
        """Return the model's score of a trajectory.

        Raises:
            RewardModelError: The model does not answer.
        """


class RewardPool:
    """Scores trajectories by the rewards of one configuration."""

    def __init__(
        self,
        reward_cfg: Reward,
        workers: Workers | None = None,
        model: Scores | None = None,
        *,
        decode: Callable[[list[int]], str] | None = None,
        decode_plain: Callable[[list[int]], str] | None = None,
        limits: RewardLimits = RewardLimits(),
    ) -> None:
        """Create a pool.

        Args:
            reward_cfg: The section [reward].
            workers: Worker processes that are shared with other pools; None: the pool has `reward_cfg.workers` of its
                own.
            model: The model of reward.model_name_or_path, if there is one.
            decode: Returns the text of token ids with special tokens, for the remote reward.
            decode_plain: Returns it without special tokens, for rewards that are written for verl and TRL.
            limits: How long calls may take.
        """
        self.cfg = reward_cfg
        self.model = model
        self.decode_plain = decode_plain
        self.remote = RemoteReward(reward_cfg, decode, limits) if REMOTE in reward_cfg.used else None
        self.components = components(reward_cfg)
        self.workers = workers or Workers(
            reward_cfg.workers,
            Limits(
                limits.check or Deadline(reward_cfg.verify_deadline_s, WALL_NAME),
                Deadline(reward_cfg.verify_timeout_s, "reward.verify_timeout_s"),
            ),
            count_name="reward.workers",
        )
        self._checker = AnswerChecker(self.workers)

    async def score(self, trajectory: Trajectory, task: Task) -> RewardParts:
        """Return the reward of a trajectory, and store the rewards' changes of counters in `trajectory.changes`.

        Raises:
            VerifierError: A check failed for a reason that is not the answer.
            RewardError: The reward raised an exception, or returned no finite number.
            RewardModelError: The reward model, or the server of reward.remote_url, does not answer.
        """
        scored = [await self._score(component, trajectory, task) for component in self.components]
        trajectory.changes = [change for _, changes in scored for change in changes]
        results = [result for result, _ in scored]
        if not self.cfg.weights:
            return results[0]
        parts = {name: value for result in reversed(results) for name, value in result.parts.items()}
        pairs = list(zip(self.components, results, strict=True))
        parts |= {component.part: result.reward for component, result in pairs}
        total = sum(component.weight * result.reward for component, result in pairs)
        return RewardParts(total, results[0].correct, parts)

    async def _score(
        self, component: _Component, trajectory: Trajectory, task: Task
    ) -> tuple[RewardParts, list[CounterUpdate]]:
        """Return one reward of a trajectory, and its changes of counters."""
        if component.name == REMOTE and self.remote:
            return await self.remote.score(trajectory, task), []
        options = self.cfg.options_of(component.name)  # each reward of a sum has its own
        if plugins.is_own(REWARD, component.name):
            user_reward = OwnReward(component.name, self._plain_text(component, trajectory))
            return await self.workers.run(user_reward, trajectory, task, RewardContext(self.cfg, task.run, options))
        services = PooledServices(self._checker, self.workers, self.model)
        context = RewardContext(
            self.cfg, task.run, options, services=services, deadline_s=self.workers.limits.wall.seconds
        )
        loaded = accept.LoadedFunction(REWARD, component.name, component.function, RewardError)
        with loaded.guarded():
            result = await call(component.function, trajectory, task, context)
            reward, correct, parts = accept.reward_parts(result)
        if component.convention.is_async:  # it awaits comparisons, and a metric is a mean over all of its responses
            parts = {**parts, "verify_timeout": float(services.verify_timeout)}
        return RewardParts(reward, correct, parts), context.changes

    def _plain_text(self, component: _Component, trajectory: Trajectory) -> str | None:
        """Return the response as verl and TRL decode it, without special tokens; None if nobody needs it."""
        if component.convention.name == "ours" or self.decode_plain is None:
            return None
        return self.decode_plain(trajectory.token_ids.tolist())

    def close(self) -> None:
        """Kill the workers for good. Checks that run or wait raise CancelledError."""
        self.workers.close()

    async def stop(self) -> None:
        """Close the pool, and the connections and processes of the remote reward."""
        if self.remote:
            await self.remote.close()
        self.close()


class RewardPools:
    """The pools of a run's environments. They share their workers, whose number and deadlines [reward] has."""

    def __init__(
        self,
        environments: Mapping[str, Environment],
        model: Scores | None = None,
        *,
        decode: Callable[[list[int]], str] | None = None,
        decode_plain: Callable[[list[int]], str] | None = None,
        limits: RewardLimits = RewardLimits(),
    ) -> None:
        """Create a pool for each environment; RewardPool has the arguments."""
        self.pools: dict[str, RewardPool] = {}
        for name, environment in environments.items():
            shared = self.workers if self.pools else None
            self.pools[name] = RewardPool(
                environment.reward, shared, model, decode=decode, decode_plain=decode_plain, limits=limits
            )
        names = [component.name for pool in self.pools.values() for component in pool.components]
        self.workers.prepare = Prepare([name for name in names if plugins.is_own(REWARD, name)])

    @property
    def workers(self) -> Workers:
        """The worker processes of all pools."""
        return next(iter(self.pools.values())).workers

    async def score(self, trajectory: Trajectory, task: Task) -> RewardParts:
        """Return the reward of a trajectory by its environment's pool; see RewardPool.score."""
        return await entry_of(self.pools, task.env).score(trajectory, task)

    async def stop(self) -> None:
        """See RewardPool.stop."""
        for pool in self.pools.values():
            await pool.stop()
