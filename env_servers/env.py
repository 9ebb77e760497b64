"""What an environment is: one class with `reset` and `step`. Everything else (sessions, retries, deadlines, capacity)
is `serving`.

One instance lives as long as one session; its steps come one at a time. `step` may be cancelled at any await (the
deadline, a closed session): release resources in `finally`. An exception it raises becomes outcome `env_error` and
never reaches the model. What `reset` raises of `MALFORMED_TASK` is the caller's mistake: HTTP 422, not tried again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from openrlhf_tir.protocol import Outcome

from .admission import Place

MALFORMED_TASK = (ValueError, TypeError, LookupError, OverflowError)
"""What reading a task raises when a field is missing or of the wrong kind: int("abc"), task["label"], float(None)."""


@dataclass(frozen=True, slots=True)
class Step:
    """What an action led to: the fields of `protocol.StepReply`. `signals` are raw facts, weighed by the reward."""

    observation: str = ""
    reward: float | None = None
    done: bool = False
    truncated: bool = False
    outcome: Outcome = "ok"
    signals: dict[str, Any] = field(default_factory=dict)


class Env:
    """Base class: override `step`, and `reset` or `close` where there is something to do."""

    place: Place | None = None
    """The place among `--workers` that the step that runs holds. A step that goes on in a stage with workers of its own
    leaves it: `self.place.leave()`."""

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Start on `task`; return the first observation ("" when the prompt says it all). Raises MALFORMED_TASK for one
        it cannot take."""
        return ""

    async def step(self, action: str, deadline_s: float) -> Step:
        """Run `action`. `deadline_s` is the time left until the caller gives up; it is enforced outside."""
        raise NotImplementedError

    async def close(self) -> None:
        """The session ended: closed by the client, expired, or the server stops."""
