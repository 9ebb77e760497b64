"""GemEnv: an episode of a GEM environment. Task: {"gem": "game:GuessTheNumber-v0-easy", "options": {...}}; an action is the model's text.

GEM's reward of the step is the step's, `terminated` is done, `truncated` is truncated. What the environment says after its observation
(`suffix`, which asks for the next action) is shown behind it. Python's and numpy's random numbers are this session's own (room.py).
"""

from __future__ import annotations

from typing import Any

from env_servers.env import Env, Step

from .room import Dice, Room

SEEDS = 1 << 31
"""numpy's takes 32 bits."""


class GemEnv(Env):
    def __init__(self, room: Room, default: str | None) -> None:
        """`default`: the environment of tasks that name none."""
        self._room, self._default = room, default
        self._gem: Any = None

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Raises ValueError, TypeError for an environment that is not registered, or options that it does not take."""
        name, options = task.get("gem", self._default), task.get("options", {})
        if not isinstance(name, str) or not isinstance(options, dict):
            raise ValueError('task.gem names the environment ("game:Wordle-v0-easy") and task.options is an object; or start the server with --gem.')
        self._dice = Dice(seed % SEEDS)
        text, info = await self._room.run(self._dice, lambda: self._start(name, options, seed % SEEDS))
        return _shown(text, info)

    def _start(self, name: str, options: dict[str, Any], seed: int) -> tuple[str, dict[str, Any]]:
        import gem

        self._gem = gem.make(name, **options)
        return self._gem.reset(seed=seed)

    async def step(self, action: str, deadline_s: float) -> Step:
        text, reward, terminated, truncated, info = await self._room.run(self._dice, lambda: self._gem.step(action))
        over = bool(terminated or truncated)
        signals = {k: v for k, v in info.items() if isinstance(v, str | int | float | bool) and k not in ("suffix", "prefix")}
        return Step(_shown(text, {} if over else info), reward=float(reward), done=bool(terminated), truncated=bool(truncated), signals=signals)


def _shown(text: str, info: dict[str, Any]) -> str:
    """The observation between what GEM's wrappers put around it."""
    parts = (info.get("prefix"), text, info.get("suffix"))
    return "\n".join(p.rstrip("\n") for p in parts if isinstance(p, str) and p)
