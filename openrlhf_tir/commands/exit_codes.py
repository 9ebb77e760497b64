"""Exit codes of `openrlhf-tir`: what a launcher, a scheduler or a script may do next. The one place that knows them.

code  name          meaning                                                          who starts it again
0     DONE          the command did what it is for                                   nobody
1     NO            check-env, audit: the answer is no. Python: an uncaught          `train.max_restarts` (a run's)
                    exception
2     MISTAKE       what the user wrote or gave cannot work; the message says what   nobody: it would end the same way
3     FAULT         the machinery failed for good; the run goes on with --resume     `train.max_restarts`
4     UNAVAILABLE   what the run needs is not there now: a server that does not      `train.max_restarts`, which waits
                    answer, room in the cluster                                      for it; else whoever started it
5     STOPPED       asked to stop (a signal, the job's time limit): a checkpoint     whoever stopped it, with --resume
                    was taken
6     HOPELESS      training itself is broken (no group can be used, nothing is      nobody: the message says what to
                    finite)                                                          look at
130   INTERRUPTED   Ctrl-C                                                           nobody
143   TERMINATED    SIGTERM: somebody wants the run to stop                          nobody
-N                  killed by signal N (seen by the launcher, which ends as          `train.max_restarts`; of SIGTERM:
                    128 + N)                                                         nobody
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
"""Codes after which nobody starts the run again: it is done, cannot work, or was asked to stop."""


def code_of(error: BaseException) -> int:
    """The exit code of a command that ended with `error`, one of ours."""
    kinds = {
        (ConfigError, DataError, ColdStartError, MethodBroken, CheckpointDamaged): MISTAKE,
        (Unavailable,): UNAVAILABLE,
        (Stopped,): STOPPED,
        (Unproductive, Diverged): HOPELESS,
    }
    return next((code for kind, code in kinds.items() if isinstance(error, kind)), FAULT)


def status_of(code: int) -> int:
    """As a shell says it: 128 + N where signal N killed the process. Handed on as it is, -15 would become 241."""
    return code if code >= 0 else 128 - code
