"""An episode of a GEM environment. Task: {"gem": "game:GuessTheNumber-v0-easy", "options": {...}}; an action is text.

GEM's reward of a step is the step's, `terminated` is done, `truncated` without it is truncated (a game whose turns are
used up reports both: it has ended, and is graded). The environment's `suffix`, which asks for the next action, is shown
after the observation. Python's and numpy's random numbers are this session's own (seeded_thread.py).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from env_servers.env import MALFORMED_TASK, Env, Step
from openrlhf_tir.errors import EnvError

from .seeded_thread import RandomState, SeededThread

SEEDS = 1 << 31
"""Number of seeds; numpy's seeds have 32 bits."""
CLOSE_S = 30.0
"""Seconds in which an environment must close. That of a container takes 10, and the call of another session may come
first."""
log = logging.getLogger(__name__)


class GemEnv(Env):
    """An episode of one GEM environment."""

    def __init__(self, thread: SeededThread, default: str | None) -> None:
        """Create the environment.

        Args:
            thread: Runs the calls of all sessions.
            default: Environment of tasks that name none.
        """
        self._thread = thread
        self._default = default
        self._gem: Any = None
        self._random: RandomState | None = None

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Start an environment.

        Raises:
            ValueError: It is not registered, or the task is malformed.
            TypeError: It does not take these options.
            EnvError: Its observations are not text, or it fails.
        """
        name = task.get("gem", self._default)
        options = task.get("options", {})
        if not isinstance(name, str) or not isinstance(options, dict):
            raise ValueError(
                'task.gem names the environment ("game:Wordle-v0-easy") and task.options is an object; or start the'
                " server with --gem."
            )
        self._random = RandomState(seed % SEEDS)
        text, info = await self._thread.run(self._random, lambda: self._start(name, options, seed % SEEDS))
        return _observation(text, info)

    def _start(self, name: str, options: dict[str, Any], seed: int) -> tuple[str, dict[str, Any]]:
        import gem

        try:
            self._gem = gem.make(name, **options)
        except LookupError as e:  # a fault of GEM: an unregistered name raises ValueError
            raise EnvError(f"GEM's environment {name!r} cannot be made: {type(e).__name__}: {e}.") from e
        try:
            return self._gem.reset(seed=seed)
        except MALFORMED_TASK as e:
            # The task was accepted, so this is the environment's own fault, whatever the exception.
            raise EnvError(f"GEM's environment {name!r} failed in reset: {type(e).__name__}: {e}.") from e

    async def step(self, action: str, deadline_s: float) -> Step:
        """Play one step."""
        assert self._random is not None, "reset comes first"
        text, reward, terminated, truncated, info = await self._thread.run(self._random, lambda: self._gem.step(action))
        over = bool(terminated or truncated)
        signals = {
            name: value
            for name, value in info.items()
            if isinstance(value, str | int | float | bool) and name not in ("suffix", "prefix")
        }
        return Step(
            _observation(text, {} if over else info),
            reward=float(reward),
            done=bool(terminated),
            truncated=bool(truncated and not terminated),
            signals=signals,
        )

    async def close(self) -> None:
        """Close the environment, if it has a `close`: some hold a container, or processes.

        It runs in the thread of all calls, after a call that was cancelled.
        """
        if self._random is None:
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                # `bool` stands for a `close` that does nothing
                await self._thread.run(self._random, lambda: getattr(self._gem, "close", bool)())
        except TimeoutError:
            log.warning(
                "the GEM environment %r was not closed within %g s; its resources outlive the session",
                self._gem,
                CLOSE_S,
            )


def _observation(text: Any, info: dict[str, Any]) -> str:
    """Return the observation with the prefix and suffix of GEM's wrappers. Raises EnvError if it is not text."""
    if not isinstance(text, str):
        raise EnvError(
            f"GEM's observation is {type(text).__name__}, not text: {str(text)[:200]!r}."
            " Use an environment whose observations are text."
        )
    parts = (info.get("prefix"), text, info.get("suffix"))
    return "\n".join(part.rstrip("\n") for part in parts if isinstance(part, str) and part)
