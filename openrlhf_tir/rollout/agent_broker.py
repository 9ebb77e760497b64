"""Offer tasks to external programs (agents), which answer them with OpenAI requests; return rewarded trajectories.

    run(task) --> offer --> take (over HTTP) --> the session's requests, recorded --> reward --> Trajectory
                                                                                  `--> gave up or silent: failed

A trajectory waits for the proof of the weights that sampled it, as every other one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np

from ..engines.sessions import AgentSession, Sessions
from ..ports import Codec
from ..types import Task, Trajectory


class AgentBroker:
    """Brings tasks and agents together. Owned by a rollout actor.

    Attributes:
        sessions: The open sessions, which record what agents ask the model.
        codec: The tokenizer.
        offered: Number of tasks that no agent has taken yet.
    """

    def __init__(self, sessions: Sessions, codec: Codec, proof: Callable[[np.ndarray], Awaitable[None]]) -> None:
        """Create a broker without offers.

        Args:
            sessions: Where sessions are opened.
            codec: The tokenizer.
            proof: Returns once tokens of these versions may be used. Raises WeightsUnverified if they never may.
        """
        self.sessions = sessions
        self.codec = codec
        self.offered = 0
        self._proof = proof
        self._offers: asyncio.Queue[AgentSession] = asyncio.Queue()

    def stats(self) -> dict[str, float]:
        """Return the numbers of open sessions and of tasks on offer."""
        return {"sessions": len(self.sessions), "tasks_offered": self.offered}

    async def run(self, task: Task, index: int, temperature: float = 1.0) -> Trajectory:
        """Return one sample of `task`, written by the agent that takes it.

        Its reward is None if the agent leaves it to the run's own reward.
        """
        session = self.sessions.open(task, temperature=temperature)
        self._offers.put_nowait(session)
        self.offered += 1
        try:
            outcome = await session.outcome
            trajectory = await self.finish(session, index)
        finally:
            self.sessions.close(session)
            self.offered -= not session.taken
        if outcome.failed:
            trajectory.failed = outcome.failed
            trajectory.why = outcome.why
        elif trajectory.failed is None and outcome.reward is not None:
            correct = outcome.reward > 0 if outcome.correct is None else outcome.correct
            trajectory.reward = outcome.reward
            trajectory.parts |= outcome.parts | {"correct": float(correct)}
        return trajectory

    async def finish(self, session: AgentSession, index: int = 0) -> Trajectory:
        """Return what a session recorded, once all its tokens are proved. It failed if the agent asked nothing."""
        trajectory = session.trace.trajectory(index, self.codec)
        await self._proof(np.concatenate([sequence.versions for sequence in trajectory.sequences]))
        if not trajectory.model_tokens:
            trajectory.failed = "agent_silent"
            trajectory.why = "The agent ended without a request to the model."
        return trajectory

    async def take(self, wait_s: float, *, override_sampling: bool = False) -> AgentSession | None:
        """Give the task that has waited longest to an agent.

        Args:
            wait_s: Seconds to wait for a task.
            override_sampling: True if the agent's requests may set sampling parameters.

        Returns:
            The session of the task; None if there was none within `wait_s`.
        """
        try:
            async with asyncio.timeout(wait_s):
                session = await self._offers.get()
                while session.outcome.done():  # its group was given up meanwhile
                    session = await self._offers.get()
        except TimeoutError:
            return None
        self.offered -= 1
        session.taken = True
        session.override_sampling = override_sampling
        session.alive()
        return session

    def give_back(self, session: AgentSession | None) -> None:
        """Offer a task again: the agent that took it disconnected before it got the answer."""
        if session is not None and not session.outcome.done():
            session.left()
            self.offered += 1
            self._offers.put_nowait(session)
