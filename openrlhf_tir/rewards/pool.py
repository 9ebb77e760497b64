"""RewardPool: Trajectory -> RewardParts, beside the rollout. Quick rewards inline; what a reward *asks* for, in worker processes.

A reward is pure, so it is simply run again once what it asked for is known. A check that misses its deadline costs that deadline
and its worker, and says "not equal": the answer is hostile, `parts["verify_timeout"]` counts it. A worker that dies is replaced
and the work tried once more; then VerifierError fails the trajectory. No fault of ours becomes reward 0.
"""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import resource
from collections.abc import Callable
from typing import Any

from ..config import Reward
from ..errors import VerifierError
from ..types import RewardParts, Task, Trajectory
from . import REGISTRY, load, symbolic

WORKER_MEMORY = 4 << 30
"""Bytes of address space of a worker: 9^(9^9) ends in MemoryError there, instead of taking the machine along."""
ATTEMPTS = 2
MAX_ASKED = 16
"""A reward asks for a handful of things; one that never stops asking is not pure."""


class _Asked(Exception):
    """Unwinds a reward that needs a value which is not known yet."""

    def __init__(self, question: tuple) -> None:
        self.question = question


class _Late(VerifierError):
    """A worker missed its deadline."""


class RewardPool:
    """Scores with `reward_cfg.name`, at most `reward_cfg.workers` checks at once, each within `verify_timeout_s`."""

    def __init__(self, reward_cfg: Reward) -> None:
        self.cfg = reward_cfg
        self.reward = load(reward_cfg.name)
        self._asks = "ask" in inspect.signature(self.reward).parameters
        self._pool = None

    async def score(self, trajectory: Trajectory, task: Task) -> RewardParts:
        """Raises VerifierError when the checker, not the answer, is at fault."""
        if not self._asks:  # all of its work is done on the spot: quick if it is one of ours, unknown if not
            if self.cfg.name in REGISTRY:
                return self.reward(trajectory, task, self.cfg)
            return await self._run(self.reward, trajectory, task, self.cfg)
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
                known[question] = await self._run(*question)
            except _Late:
                if question[0] is not symbolic.equal:
                    raise
                known[question], timeouts = False, timeouts + 1
        raise VerifierError(f"Reward {self.cfg.name!r} asked for {MAX_ASKED} different things of one trajectory. It must be a pure function.")

    async def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        """`function(*args)` in a worker. VerifierError when it misses its deadline (the worker is killed) or dies twice."""
        from pebble import ProcessExpired

        for _ in range(ATTEMPTS):
            try:
                return await asyncio.wrap_future(self._workers().schedule(function, args=args, timeout=self.cfg.verify_timeout_s))
            except ProcessExpired as e:
                death = e
            except TimeoutError as e:
                raise _Late(f"{function.__name__} missed reward.verify_timeout_s = {self.cfg.verify_timeout_s} s. Raise it, or make the reward quicker.") from e
        raise VerifierError(
            f"The reward worker died {ATTEMPTS} times in {function.__name__} ({death}). See its exit code; reward.workers or memory may be too small."
        )

    def _workers(self):
        if self._pool is None:
            from pebble import ProcessPool

            # Not fork: the caller's process has threads (engine, event loop) whose locks a forked child would inherit. The server
            # imports sympy once, so that the successor of a killed worker is there in milliseconds.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["math_verify"])
            self._pool = ProcessPool(max_workers=self.cfg.workers, context=context, initializer=_start_worker)
        return self._pool

    def close(self) -> None:
        """Kill the workers. Checks that still run end in CancelledError."""
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None


def _start_worker() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (WORKER_MEMORY, WORKER_MEMORY))
    symbolic.warm()
