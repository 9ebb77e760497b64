"""Start Ray's daemons in sessions of their own.

    ray.init(address="local") -> gcs_server, raylet, ... -> raylet's children: workers, actors, agents

Launchers signal a whole process group: `timeout`, Slurm, Ctrl-C in a pipeline. Ray starts its daemons in the group of
the driver, so the same signal would end them before the driver has saved its checkpoint. In sessions of their own they
do not hear it. The driver ends them when it is done, and the kernel ends them with it if it is killed: Ray sets
PR_SET_PDEATHSIG, which is about the parent and not about its session.
"""

from __future__ import annotations

import subprocess
from contextlib import AbstractContextManager
from typing import Any

from ray._private import services

from ..machine.replaced import replaced


class _OwnSession(subprocess.Popen):
    """A process that leads a session, and so a process group, of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs | {"start_new_session": True})


def own_sessions() -> AbstractContextManager[None]:
    """Within the block, each daemon that `ray.init` starts leads its own session."""
    return replaced(services, "ConsolePopen", _OwnSession)
