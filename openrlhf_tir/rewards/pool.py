"""RewardPool: Trajectory -> RewardParts, beside the rollout. Quick rewards inline; what a reward *asks* for, in worker
processes.

A reward is pure, so it is simply run again once what it asked for is known. A check of an answer that uses up its CPU
(`reward.verify_timeout_s`) says "not equal": that is the answer's doing, so it is data; `parts["verify_timeout"]`
counts it. One that is not over in time (`reward.verify_deadline_s`) without having had that much CPU is a starved
host's doing, and a worker that dies twice is ours as well: VerifierError fails the trajectory. No fault of ours becomes
reward 0, and none of the reward's own: what raises or returns no finite number is a RewardError, with file and line.

With `reward.weights` several rewards are added up: `parts` then holds each one's own value under its name.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..config import Reward
from ..config.environments import Environment, one
from ..config.integrations.reward_signatures import Convention, convention_of
from ..config.sections.reward import REMOTE
from ..errors import RewardError, VerifierError
from ..types import CounterUpdate, RewardParts, Task, Trajectory
from ..user_code import plugins
from . import REWARD, RewardFn, accept, load
from .checking import symbolic
from .context import RewardContext
from .own import OwnReward, Prepare
from .remote.batches import RemoteReward
from .served.model import score as of_model
from .workers import CpuSpent, Workers

VERDICTS_KEPT = 4096
"""Pairs of answers, of LONGEST_KEPT characters together at most."""
LONGEST_KEPT = 1000
MAX_ASKED = 16
"""A reward asks for a handful of things; one that never stops asking is not pure."""


class _Asked(BaseException):
    """Unwinds a reward that needs a value which is not known yet."""

    def __init__(self, question: tuple) -> None:
        self.question = question


@dataclass(frozen=True, slots=True)
class _Component:
    """One of the rewards that are added up; `asks`: its slow parts can be done elsewhere."""

    name: str
    weight: float
    function: RewardFn
    asks: bool
    convention: Convention

    @property
    def part(self) -> str:
        """What its value is called among the parts."""
        return self.name.rpartition(":")[2]


def components(cfg: Reward) -> list[_Component]:
    """`reward.weights`, in its order, else `reward.name` alone. Raises ConfigError for a name that cannot be loaded."""
    functions = {name: load(name) for name in cfg.used}
    return [
        _Component(name, cfg.used[name], f, "ask" in inspect.signature(f).parameters, convention_of(f))
        for name, f in functions.items()
    ]


class Scores(Protocol):
    """cluster/reward_models/replicas.py."""

    async def score(self, trajectory: Trajectory) -> float:
        """Raises RewardModelError."""


class RewardPool:
    """Scores with `reward_cfg.name` or `weights`, at most `reward_cfg.workers` at once, or in another's `workers`."""

    def __init__(
        self,
        reward_cfg: Reward,
        workers: Workers | None = None,
        model: Scores | None = None,
        *,
        decode: Callable[[list[int]], str] | None = None,
        decode_plain: Callable[[list[int]], str] | None = None,
    ) -> None:
        """model: of reward.model_name_or_path, where there is one. decode: token ids -> text with special tokens, for
        the remote reward; decode_plain: without them, for rewards written for verl and TRL."""
        self.cfg, self.model = reward_cfg, model
        self.decode_plain = decode_plain
        self.remote = RemoteReward(reward_cfg, decode) if REMOTE in reward_cfg.used else None
        self.components = components(reward_cfg)
        names = {
            "cpu_name": "reward.verify_timeout_s",
            "wall_name": "reward.verify_deadline_s",
            "count_name": "reward.workers",
        }
        self._verdicts: OrderedDict[tuple, bool] = OrderedDict()
        self.workers = workers or Workers(
            reward_cfg.workers, reward_cfg.verify_timeout_s, reward_cfg.verify_deadline_s, **names
        )

    async def score(self, trajectory: Trajectory, task: Task) -> RewardParts:
        """Raises VerifierError when the checker, not the answer, is at fault, RewardError when the reward itself is.

        What the rewards ask the run's counters to be changed by is left in `trajectory.changes`.
        """
        scored = [await self._score(component, trajectory, task) for component in self.components]
        trajectory.changes = [change for _, changes in scored for change in changes]
        results = [result for result, _ in scored]
        if not self.cfg.weights:
            return results[0]
        parts = {name: value for result in reversed(results) for name, value in result.parts.items()}
        parts |= {c.part: result.reward for c, result in zip(self.components, results, strict=True)}
        total = sum(c.weight * result.reward for c, result in zip(self.components, results, strict=True))
        return RewardParts(total, results[0].correct, parts)

    async def _score(
        self, c: _Component, trajectory: Trajectory, task: Task
    ) -> tuple[RewardParts, list[CounterUpdate]]:
        if c.name == REMOTE and self.remote:
            return await self.remote.score(trajectory, task), []
        if not c.asks:  # all of its work is done on the spot: quick if it is one of ours, unknown if not
            if plugins.is_own(REWARD, c.name):
                own = OwnReward(c.name, self._plain_text(c, trajectory))
                return await self.workers.run(own, trajectory, task, self._context(c, task))
            context = self._context(c, task)
            return self._called(c, trajectory, task, context), context.changes
        known: dict[tuple, Any] = {}
        timeouts = 0

        def ask(function: Callable[..., Any], *args: Any) -> Any:
            if (question := (function, *args)) not in known:
                raise _Asked(question)
            return known[question]

        for _ in range(MAX_ASKED):
            context = self._context(c, task)
            try:
                reward, correct, parts = self._called(c, trajectory, task, context, ask=ask)
                return RewardParts(reward, correct, {**parts, "verify_timeout": float(timeouts > 0)}), context.changes
            except _Asked as asked:
                question = asked.question
            try:
                known[question] = await self._answer(question, trajectory)
            except CpuSpent:
                if question[0] is not symbolic.equal:
                    raise
                known[question], timeouts = False, timeouts + 1
        raise VerifierError(
            f"Reward {c.name!r} asked for {MAX_ASKED} different things of one trajectory. It must be a pure function."
        )

    def _plain_text(self, c: _Component, trajectory: Trajectory) -> str | None:
        """The response as verl and TRL decode it, without special tokens; None where nobody needs it."""
        if c.convention.name == "ours" or self.decode_plain is None:
            return None
        return self.decode_plain(trajectory.token_ids.tolist())

    async def _answer(self, question: tuple, trajectory: Trajectory) -> Any:
        """Whether two answers are equal is asked for each response of a group, often of the same two: it is kept."""
        if question[0] is of_model and self.model:
            return await self.model.score(trajectory)
        pair = question[1:]
        if question[0] is not symbolic.equal or sum(map(len, pair)) > LONGEST_KEPT:
            return await self.workers.run(*question)
        if pair not in self._verdicts:
            self._verdicts[pair] = await self.workers.run(*question)
        self._verdicts.move_to_end(pair)
        if len(self._verdicts) > VERDICTS_KEPT:
            self._verdicts.popitem(last=False)
        return self._verdicts[pair]

    def _context(self, c: _Component, task: Task) -> RewardContext:
        """The context of one call: a reward that is run again must not have asked for its changes twice. In a sum,
        options are by reward."""
        return RewardContext(self.cfg, task.run, self.cfg.options_of(c.name))

    def _called(
        self, c: _Component, trajectory: Trajectory, task: Task, context: RewardContext, **ask: Any
    ) -> RewardParts:
        with accept.named(REWARD, c.name, c.function, RewardError):
            result = c.function(trajectory, task, context, **ask)
        return accept.reward_parts(result, REWARD, c.name, c.function)

    def close(self) -> None:
        """Kill the workers. Checks that still run end in CancelledError."""
        self.workers.close()

    async def stop(self) -> None:
        """`close`, and the connections and processes of the remote reward."""
        if self.remote:
            await self.remote.close()
        self.close()


class RewardPools:
    """A pool for each environment of the run, which share their workers: [reward] says how many and how patient."""

    def __init__(
        self,
        environments: Mapping[str, Environment],
        model: Scores | None = None,
        *,
        decode: Callable[[list[int]], str] | None = None,
        decode_plain: Callable[[list[int]], str] | None = None,
    ) -> None:
        """model: of reward.model_name_or_path, where there is one. decode, decode_plain: as RewardPool's."""
        self.pools: dict[str, RewardPool] = {}
        for name, e in environments.items():
            shared = self.workers if self.pools else None
            self.pools[name] = RewardPool(e.reward, shared, model, decode=decode, decode_plain=decode_plain)
        self.workers.prepare = Prepare(
            [c.name for pool in self.pools.values() for c in pool.components if plugins.is_own(REWARD, c.name)]
        )

    @property
    def workers(self) -> Workers:
        return next(iter(self.pools.values())).workers

    async def score(self, trajectory: Trajectory, task: Task) -> RewardParts:
        """By the reward of the task's environment; see RewardPool.score."""
        return await one(self.pools, task.env).score(trajectory, task)

    def close(self) -> None:
        self.workers.close()

    async def stop(self) -> None:
        for pool in self.pools.values():
            await pool.stop()
