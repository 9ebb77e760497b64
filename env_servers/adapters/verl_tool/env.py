"""An environment whose action is text for the tool server, which finds the tool that reads it. Each session has a
trajectory id.

An action that no tool reads (`valids` is false) is an observation and is trained (model_error, signals.error_type
"invalid"). A tool that raised is env_error. A tool server gives no reward, unless a tool's observation is an object
with a number `reward`.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from typing import Any

from env_servers.env import Env, Step

from .batches import Batches, VerlToolFailed

FINISH_S = 10.0
"""Deadline of the message that a trajectory is over."""
TEXT_KEY = "obs"
"""Key of the text in an observation that is an object."""
log = logging.getLogger(__name__)


class VerlToolEnv(Env):
    """A trajectory on a tool server."""

    def __init__(self, batches: Callable[[], Batches]) -> None:
        """Create the environment. `batches` returns the batches of the server."""
        self._batches = batches()
        self._trajectory = uuid.uuid4().hex
        self._steps = 0
        self._invalid = 0

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Read `task["extra_field"]`, which is sent with every action. Raises ValueError."""
        self._extra = task.get("extra_field", {})
        if not isinstance(self._extra, dict):
            raise ValueError(f"task.extra_field is {type(self._extra).__name__}, not an object.")
        return ""

    async def step(self, action: str, deadline_s: float) -> Step:
        """Send an action.

        Raises:
            VerlToolFailed: A tool failed, or gave a reward that is no number. The outcome is env_error.
        """
        # before the answer, which may never come: `close` must end what the tools have begun
        self._steps += 1
        observed = await self._batches.ask(self._trajectory, action, self._extra, deadline_s)
        self._invalid += not observed.valid
        answer = observed.observation if isinstance(observed.observation, dict) else {TEXT_KEY: observed.observation}
        if answer.get("error"):
            raise VerlToolFailed(f"A tool failed: {str(answer['error'])[:500]}")
        text = answer.get(TEXT_KEY)
        reward = answer.get("reward")
        if reward is not None and not isinstance(reward, int | float):
            raise VerlToolFailed(f"A tool gives the reward {str(reward)[:100]!r}, which is not a number.")
        if not text and not observed.valid:
            text = answer.get("invalid_reason")
        return Step(
            text if isinstance(text, str) else json.dumps(answer, ensure_ascii=False),
            reward=None if reward is None else float(reward),
            done=observed.done,
            outcome="ok" if observed.valid else "model_error",
            signals={
                "steps": self._steps,
                "invalid": self._invalid,
                "error_type": None if observed.valid else "invalid",
            },
        )

    async def close(self) -> None:
        """Tell the tools that the trajectory is over, if they know it. A failure of that is only logged."""
        if self._steps:
            try:
                await self._batches.ask(self._trajectory, "", {**self._extra, "finish": True}, FINISH_S)
            except Exception as e:  # the episode is over and its result is known
                log.warning("the tool server was not told that trajectory %s is over: %s", self._trajectory, e)
