"""An environment whose action is a JSON list of calls of an MCP server's tools.

The observation is a line of JSON for each call, {"result": text} or {"error": text}. There is one connection per
session. A mistake of the model is an observation and is trained (outcome model_error, signals.error_type): `bad_call`,
`unknown_function`, `refused` (the tool's own error). An MCP server that dies is env_error. There is no reward and no
end: the run's own reward judges.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from env_servers.actions import BadAction, Lines, read_calls
from env_servers.env import Env, Step

from .link import McpLink, Target


class McpEnv(Env):
    """A session with the tools of an MCP server."""

    def __init__(self, target: Target, offered: Collection[str], max_chars: int) -> None:
        """Create the environment.

        Args:
            target: The MCP server.
            offered: Names of the tools that may be called.
            max_chars: Characters of one result that are shown.
        """
        self._link = McpLink(target)
        self._offered = offered
        self._max_chars = max_chars
        self._calls = 0
        self._errors = 0

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Connect. Raises McpServerFailed."""
        await self._link.open()
        return ""

    async def step(self, action: str, deadline_s: float) -> Step:
        """Carry out calls. Raises McpServerFailed."""
        try:
            calls = read_calls(action)
        except BadAction as e:
            self._errors += 1
            return Step(str(e), outcome="model_error", signals=self._signals("bad_call"))
        lines = Lines(self._max_chars)
        first_error = None
        for name, arguments in calls:
            self._calls += 1
            if name not in self._offered:
                lines.add("error", f"There is no function {name!r}.")
                first_error = first_error or "unknown_function"
                self._errors += 1
                continue
            result = await self._link.call(name, arguments)
            lines.add("error" if result.error else "result", result.text)
            if result.error:
                first_error = first_error or ("bad_call" if result.refused else "refused")
                self._errors += 1
        return Step(str(lines), outcome="model_error" if first_error else "ok", signals=self._signals(first_error))

    def _signals(self, error: str | None) -> dict[str, Any]:
        return {"calls": self._calls, "errors": self._errors, "error_type": error}

    async def close(self) -> None:
        await self._link.close()
