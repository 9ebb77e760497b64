"""RewardPool: Trajectory -> RewardParts, beside the rollout. Quick rewards inline; what a reward *asks* for, in worker processes.

A reward is pure, so it is simply run again once what it asked for is known. A check that misses its deadline costs that deadline
and its worker, and says "not equal": the answer is hostile, `parts["verify_timeout"]` counts it. A worker that dies is replaced
and the work tried once more; then VerifierError fails the trajectory. No fault of ours becomes reward 0.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..config import Reward
from ..errors import VerifierError
from ..types import RewardParts, Task, Trajectory
from . import REGISTRY, load, symbolic
from .workers import Late, Workers

MAX_ASKED = 16
"""A reward asks for a handful of things; one that never stops asking is not pure."""


class _Asked(Exception):
    """Unwinds a reward that needs a value which is not known yet."""

    def __init__(self, question: tuple) -> None:
        self.question = question


class RewardPool:
    """Scores with `reward_cfg.name`, at most `reward_cfg.workers` checks at once, each within `verify_timeout_s`."""

    def __init__(self, reward_cfg: Reward) -> None:
        self.cfg = reward_cfg
        self.reward = load(reward_cfg.name)
        self._asks = "ask" in inspect.signature(self.reward).parameters
        self.workers = Workers(reward_cfg.workers, reward_cfg.verify_timeout_s, deadline_name="reward.verify_timeout_s", count_name="reward.workers")

    async def score(self, trajectory: Trajectory, task: Task) -> RewardParts:
        """Raises VerifierError when the checker, not the answer, is at fault."""
        if not self._asks:  # all of its work is done on the spot: quick if it is one of ours, unknown if not
            if self.cfg.name in REGISTRY:
                return self.reward(trajectory, task, self.cfg)
            return await self.workers.run(self.reward, trajectory, task, self.cfg)
        known: dict[tuple, Any] = {}
        timeouts = 0

        def ask(function: Callable[..., Any], *args: Any) -> Any:
            if (question := (function, *args)) not in known:
                raise _Asked(question)
            return known[question]

        for _ in range(MAX_ASKED):
            try:
                reward, correct, parts = self.reward(trajectory, task, self.cfg, ask=ask)
                return RewardParts(reward, correct, {**parts, "verify_timeout": float(timeouts > 0)})
            except _Asked as asked:
                question = asked.question
            try:
                known[question] = await self.workers.run(*question)
            except Late:
                if question[0] is not symbolic.equal:
                    raise
                known[question], timeouts = False, timeouts + 1
        raise VerifierError(f"Reward {self.cfg.name!r} asked for {MAX_ASKED} different things of one trajectory. It must be a pure function.")

    def close(self) -> None:
        """Kill the workers. Checks that still run end in CancelledError."""
        self.workers.close()
