"""The base class of environments: one class with `reset` and `step`.

Everything else (sessions, retries, deadlines, capacity) is done by `serving`. One instance lives as long as one
session, and its steps come one at a time. `step` may be cancelled at any await, when its deadline passes or the session
is closed: release resources in `finally`. An exception becomes outcome `env_error` and never reaches the model. An
exception of MALFORMED_TASK in `reset` of this package's classes is a mistake of the caller and answered with HTTP 422:
the call is not sent again, and the group is issued once more, as another server may know the row. In a user's class it
is a bug with file and line, as any other exception.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from openrlhf_tir.protocol import Outcome

from .admission import ExecutionSlot

MALFORMED_TASK = (ValueError, TypeError, LookupError, OverflowError)
"""Exceptions raised when a field of a task is missing or of the wrong type: int("abc"), task["label"], float(None)."""


@dataclass(frozen=True, slots=True)
class Step:
    """Result of an action: the fields of `protocol.StepReply`. `signals` are raw facts, which the reward weighs."""

    observation: str = ""
    reward: float | None = None
    done: bool = False
    truncated: bool = False
    outcome: Outcome = "ok"
    signals: dict[str, Any] = field(default_factory=dict)


class Env:
    """Base class of environments. Override `step`, and `reset` or `close` where they have something to do."""

    execution_slot: ExecutionSlot | None = None
    """The slot among `--workers` that the running step holds. A step that continues in a stage with workers of its own
    gives it back early: `self.execution_slot.release()`."""

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Start on a task and return the first observation.

        Args:
            task: Label and `meta` column of the row.
            seed: Seed of everything random. The same task and seed give the same episode.

        Returns:
            The first observation; "" if the prompt contains everything.

        Raises:
            ValueError: As every exception of MALFORMED_TASK: the task cannot be read.
        """
        return ""

    async def step(self, action: str, deadline_s: float) -> Step:
        """Run an action and return its result.

        Args:
            action: The action as text, as the turn protocol has cut it out of the model's response.
            deadline_s: Seconds until the caller gives up. The server enforces it.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Release resources. Called when the session was closed by its client, has expired, or the server stops."""
