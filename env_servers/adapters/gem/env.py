"""GemEnv: an episode of a GEM environment. Task: {"gem": "game:GuessTheNumber-v0-easy", "options": {...}}; an action is
the model's text.

GEM's reward of the step is the step's, `terminated` is done, `truncated` without it is truncated (a game whose turns
are used up says both: it has ended, and is judged). What the environment says after
its observation (`suffix`, which asks for the next action) is shown behind it. Python's and numpy's random numbers are
this session's own (room.py)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from env_servers.env import MALFORMED_TASK, Env, Step
from openrlhf_tir.errors import EnvError

from .room import Dice, Room

SEEDS = 1 << 31
"""numpy's takes 32 bits."""
CLOSE_S = 30.0
"""How long the end of an environment may take: a container's takes 10, and another session's call may hold the room."""
log = logging.getLogger(__name__)


class GemEnv(Env):
    def __init__(self, room: Room, default: str | None) -> None:
        """`default`: the environment of tasks that name none."""
        self._room = room
        self._default = default
        self._gem: Any = None
        self._dice: Dice | None = None

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Raises ValueError, TypeError for an environment that is not registered, or options that it does not take;
        EnvError for one without text."""
        name = task.get("gem", self._default)
        options = task.get("options", {})
        if not isinstance(name, str) or not isinstance(options, dict):
            raise ValueError(
                'task.gem names the environment ("game:Wordle-v0-easy") and task.options is an object; or start the'
                " server with --gem."
            )
        self._dice = dice = Dice(seed % SEEDS)
        text, info = await self._room.run(dice, lambda: self._start(name, options, seed % SEEDS))
        return _shown(text, info)

    def _start(self, name: str, options: dict[str, Any], seed: int) -> tuple[str, dict[str, Any]]:
        import gem

        try:
            self._gem = gem.make(name, **options)
        except LookupError as e:  # what is not registered is a ValueError
            raise EnvError(f"GEM's environment {name!r} cannot be made: {type(e).__name__}: {e}.") from e
        try:
            return self._gem.reset(seed=seed)
        except MALFORMED_TASK as e:
            # The task has been taken: what is raised now is the environment's own fault, whatever its class.
            raise EnvError(f"GEM's environment {name!r} failed in reset: {type(e).__name__}: {e}.") from e

    async def step(self, action: str, deadline_s: float) -> Step:
        assert self._dice is not None, "reset comes first"
        text, reward, terminated, truncated, info = await self._room.run(self._dice, lambda: self._gem.step(action))
        over = bool(terminated or truncated)
        signals = {
            k: v for k, v in info.items() if isinstance(v, str | int | float | bool) and k not in ("suffix", "prefix")
        }
        return Step(
            _shown(text, {} if over else info),
            reward=float(reward),
            done=bool(terminated),
            truncated=bool(truncated and not terminated),
            signals=signals,
        )

    async def close(self) -> None:
        """Some environments hold a container, or processes: what has a `close` is closed, in the room, behind a call
        that was given up."""
        if self._dice is None:
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._room.run(self._dice, lambda: getattr(self._gem, "close", bool)())
        except TimeoutError:
            log.warning(
                "the GEM environment %r was not closed within %g s; what it holds outlives its session",
                self._gem,
                CLOSE_S,
            )


def _shown(text: Any, info: dict[str, Any]) -> str:
    """The observation between what GEM's wrappers put around it. Raises EnvError for one that is no text."""
    if not isinstance(text, str):
        raise EnvError(
            f"GEM's observation is {type(text).__name__}, not text: {str(text)[:200]!r}."
            " Use an environment whose observations are text."
        )
    parts = (info.get("prefix"), text, info.get("suffix"))
    return "\n".join(p.rstrip("\n") for p in parts if isinstance(p, str) and p)
