"""McpEnv: action = a JSON list of calls of an MCP server's tools; observation = a line of JSON per call, {"result":
text} or {"error": text}.

One connection per session. What the model gets wrong is told to it and trained (outcome model_error,
signals.error_type): `bad_call`, `unknown_function`, `refused` (the tool's own complaint). An MCP server that dies is
env_error. There is no reward and no end: the run's own reward judges.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from env_servers.actions import BadAction
from env_servers.adapters.calls import Lines, read_calls
from env_servers.env import Env, Step

from .link import McpLink, Target


class McpEnv(Env):
    def __init__(self, target: Target, offered: Collection[str], max_chars: int) -> None:
        """`offered`: names of the tools that may be called; `max_chars` of one result are shown."""
        self._link = McpLink(target)
        self._offered = offered
        self._max_chars = max_chars
        self._calls = 0
        self._errors = 0

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Raises McpServerFailed."""
        await self._link.open()
        return ""

    async def step(self, action: str, deadline_s: float) -> Step:
        try:
            calls = read_calls(action)
        except BadAction as e:
            self._errors += 1
            return Step(str(e), outcome="model_error", signals=self._signals("bad_call"))
        lines = Lines(self._max_chars)
        wrong = None
        for name, arguments in calls:
            self._calls += 1
            if name not in self._offered:
                lines.add("error", f"There is no function {name!r}.")
                wrong = wrong or "unknown_function"
                self._errors += 1
                continue
            result = await self._link.call(name, arguments)
            lines.add("error" if result.error else "result", result.text)
            if result.error:
                wrong = wrong or ("bad_call" if result.refused else "refused")
                self._errors += 1
        return Step(str(lines), outcome="model_error" if wrong else "ok", signals=self._signals(wrong))

    def _signals(self, error: str | None) -> dict[str, Any]:
        return {"calls": self._calls, "errors": self._errors, "error_type": error}

    async def close(self) -> None:
        await self._link.close()
