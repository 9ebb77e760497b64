"""Agents: a task on offer -> an external program's OpenAI requests -> a rewarded trajectory.

    run(task) ──> offer ──> take (by HTTP) ──> requests of the session, recorded ──> reward ──> Trajectory
                                                                               `──> gave up, or silence: failed

The trajectory waits for the proof of the weights that sampled it, like every other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal

import numpy as np

from ..engines.sessions import AgentSession, Sessions
from ..ports import Codec
from ..types import Task, Trajectory


class Agents:
    """Owned by a rollout actor."""

    def __init__(
        self,
        sessions: Sessions,
        codec: Codec,
        proof: Callable[[np.ndarray], Awaitable[None]],
        *,
        overflow: Literal["fail", "cut"] = "fail",
    ) -> None:
        """`proof`: returns once tokens of these versions may be used, raises WeightsUnverified when they never may.

        `overflow`: what becomes of a trajectory whose agent gave up since the context was full: failed, or cut at its
        limit and judged by the run's own reward.
        """
        self.sessions, self.codec, self._proof, self._overflow = sessions, codec, proof, overflow
        self._offers: asyncio.Queue[AgentSession] = asyncio.Queue()
        self.offered = 0
        """Tasks that no agent has taken."""

    def stats(self) -> dict[str, float]:
        return {"sessions": len(self.sessions), "tasks_offered": self.offered}

    async def run(self, task: Task, index: int, temperature: float = 1.0) -> Trajectory:
        """One sample of `task` by whoever takes it. Its reward is None when the agent left it to the run's own."""
        session = self.sessions.open(task, temperature=temperature)
        self._offers.put_nowait(session)
        self.offered += 1
        try:
            said = await session.outcome
            trajectory = await self.finish(session, index)
        finally:
            self.sessions.close(session)
            self.offered -= not session.taken
        if session.overflowed and self._overflow == "cut" and trajectory.model_tokens:
            trajectory.finish_reason = "length"
            said = replace(said, failed=None)
        if said.failed:
            trajectory.failed, trajectory.why = said.failed, said.why
        elif said.reward is not None:
            trajectory.reward = said.reward
            trajectory.parts |= said.parts | {
                "correct": float(said.reward > 0 if said.correct is None else said.correct)
            }
        return trajectory

    async def finish(self, session: AgentSession, index: int = 0) -> Trajectory:
        """What the session recorded, once all of it is proved. Failed when the agent asked the model nothing."""
        trajectory = session.trace.trajectory(index, self.codec)
        await self._proof(np.concatenate([t.versions for t in trajectory.sequences]))
        if not trajectory.model_tokens:
            trajectory.failed, trajectory.why = "agent_silent", "the agent ended without asking the model for anything"
        return trajectory

    async def take(self, wait_s: float, *, override_sampling: bool = False) -> AgentSession | None:
        """The task that has waited longest; None when there is none for `wait_s`."""
        try:
            async with asyncio.timeout(wait_s):
                while (session := await self._offers.get()).outcome.done():
                    pass  # its group was given up meanwhile
        except TimeoutError:
            return None
        self.offered -= 1
        session.taken, session.override_sampling = True, override_sampling
        session.alive()
        return session

    def give_back(self, session: AgentSession | None) -> None:
        """On offer again: the agent that took it left before it was told."""
        if session is not None and not session.outcome.done():
            session.left()
            self.offered += 1
            self._offers.put_nowait(session)
