"""Exit codes of `openrlhf-tir`: they tell a launcher, a scheduler or a script what to do next.

code  name          meaning                                                      who starts the run again
0     DONE          the command succeeded                                        no one
1     NO            the command did its work and the answer is no (check-env,    `train.max_restarts` (a run)
                    audit, size, control, an import without a recipe, user
                    code that --check-only could not try), or its output's
                    reader left. Python: an uncaught exception
2     MISTAKE       the user's input cannot work; the message says why           nobody: it would fail again
3     FAULT         infrastructure failed for good; --resume continues the run   `train.max_restarts`
4     UNAVAILABLE   something that the run needs is not there now: a server      `train.max_restarts`, which waits
                    that does not answer, room in the cluster                    for it; else whoever started it
5     STOPPED       the run was asked to stop (a signal, the job's time limit)   whoever stopped it, with --resume
                    and wrote a checkpoint, or said why there is none
6     HOPELESS      training itself is broken (no group can be used, nothing     nobody: the message says what to
                    is finite)                                                   look at
130   INTERRUPTED   a second signal, or a session that did not close in time:    nobody
                    all was killed. Ctrl-C before there was a run to stop
143   TERMINATED    SIGTERM before there was a run to stop                       nobody
-N                  killed by signal N, as the launcher sees it; it ends with    `train.max_restarts`; after SIGTERM
                    128 + N                                                      nobody
"""

from __future__ import annotations

import signal

from ..errors import (
    CheckpointDamaged,
    ColdStartError,
    ConfigError,
    DataError,
    Diverged,
    MethodBroken,
    Stopped,
    Unavailable,
    Unproductive,
)

DONE = 0
NO = 1
MISTAKE = 2
FAULT = 3
UNAVAILABLE = 4
STOPPED = 5
HOPELESS = 6
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
FINAL = frozenset({DONE, MISTAKE, STOPPED, HOPELESS, INTERRUPTED, TERMINATED, -signal.SIGINT, -signal.SIGTERM})
"""Codes after which the launcher does not start the run again: it is done, cannot work, or was asked to stop."""


def code_of(error: BaseException) -> int:
    """Return the exit code of a command that ended with one of this project's errors."""
    codes = {
        (ConfigError, DataError, ColdStartError, MethodBroken, CheckpointDamaged): MISTAKE,
        (Unavailable,): UNAVAILABLE,
        (Stopped,): STOPPED,
        (Unproductive, Diverged): HOPELESS,
    }
    return next((code for types, code in codes.items() if isinstance(error, types)), FAULT)


def status_of(code: int) -> int:
    """Return a code as a shell reports it: 128 + N if signal N killed the process. (-15 itself would become 241.)"""
    return code if code >= 0 else 128 - code
