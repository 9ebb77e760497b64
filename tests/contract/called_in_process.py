"""A fake engine that is its own handle, for tests of what pushes to engines."""

from __future__ import annotations

from typing import Any

from openrlhf_tir.engines.local_engine import LocalEngine
from openrlhf_tir.waiting.deadlines import Deadline


class CalledInProcess:
    """Adds `call` of ports.RemoteEngine to a class that has an engine's methods, a name and `discard`."""

    name = "rollout-0"

    async def call(self, method: Any, *args: Any, deadline: Deadline) -> Any:
        return await LocalEngine(self, self.name).call(method, *args, deadline=deadline)  # type: ignore[arg-type]
