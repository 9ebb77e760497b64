"""Which of Ray's errors mean that a process, or what it held, is gone. Only this module distinguishes them.

A death is answered by a replacement: an engine by another actor, learner ranks by restarting all of them, a lost group
by issuing its prompt again. Every other error belongs to the code that raised it, and is raised as it is.
"""

from __future__ import annotations

import re

from ray import exceptions as ray

from ..config.paths import shorten
from ..telemetry.lost import MEMORY_REMEDY

DEATHS: tuple[tuple[type[Exception], str], ...] = (
    (ray.OutOfMemoryError, "Ray's memory monitor killed it because its node ran out of memory"),
    (ray.OwnerDiedError, "the process that owned one of its objects died"),
    (ray.ObjectLostError, "an object that it needs was lost, with the node or process that held it"),
    (ray.NodeDiedError, "its node died"),
    (ray.LocalRayletDiedError, "the Ray daemon of its node died"),
    (ray.WorkerCrashedError, "its process crashed"),
    (ray.ActorPlacementGroupRemoved, "its reserved resources were taken away"),
    (ray.TaskPlacementGroupRemoved, "its reserved resources were taken away"),
    (ray.ActorUnschedulableError, "no node can hold it any more"),
    (ray.ActorUnavailableError, "its node cannot be reached"),
    (ray.RayActorError, "its process died"),
    (ray.RpcError, "its node cannot be reached"),
)
"""Error -> what happened, the narrower class first.

A call whose outcome is unknown (ActorUnavailableError) counts as a death too: its process is ended before another takes
its place, so nothing is done twice.
"""

MAX_MESSAGE = 300
"""Characters of Ray's own message that are repeated."""
MEMORY_USERS = 3
"""Rows that are repeated from the memory monitor's table of the ten largest processes."""
MAX_COMMAND = 120
"""Characters of a row of that table that are repeated."""
_USERS = re.compile(r"Top \d+ memory users:\s*(?P<users>.*?)(?=Refer to the documentation|$)", re.DOTALL)


def death(error: BaseException) -> str | None:
    """Return what happened to the process behind a failed call, with Ray's own message.

    Returns None if the code that ran there raised the error. An argument that was lost on its way fails inside the
    callee:
    Ray then wraps the error as the cause of a RayTaskError.
    """
    if isinstance(error, ray.RayTaskError) and isinstance(error.cause, ray.RayError):
        error = error.cause
    for kind, meaning in DEATHS:
        if isinstance(error, kind):
            text = str(error).strip()
            if kind is ray.OutOfMemoryError:
                return f"{meaning} ({type(error).__name__}: {_of_monitor(text)}). {MEMORY_REMEDY}"
            message = shorten(text.partition("\n")[0], MAX_MESSAGE)
            return f"{meaning} ({type(error).__name__}: {message or 'no more is known'})"
    return None


def own_error(error: BaseException) -> BaseException:
    """Return the error that the code behind a failed call raised. The text of Ray's own holds its whole traceback."""
    return getattr(error, "cause", None) or error


def _of_monitor(text: str) -> str:
    """Return the memory monitor's message on one line: figures and remedy in full, the first rows of its table."""
    if table := _USERS.search(text):
        rows = [row.strip() for row in table["users"].splitlines() if row.strip()]
        largest = "; ".join(" ".join(row.split())[:MAX_COMMAND] for row in rows[: 1 + MEMORY_USERS])
        text = f"{text[: table.start()]}most memory have {largest}. {text[table.end() :]}"
    return " ".join(text.split())
