"""An environment whose action is Python source. The task's convention decides what the model reads (conventions.py).

Each step is a fresh process; `stateful` has sessions that keep their state.

    Sandbox.run(code) -> Execution -> `judge` -> Step(observation, outcome, signals)

Signals:
    executed            True if the code compiled and ran
    error_type          None, "syntax", "exception", "time_limit", "memory" or "output_flood"
    return_code         exit code of the process
    stdout_truncated    True if more was printed than is kept
    seconds             wall clock of the call

A sandbox that fails raises, which is outcome env_error and never the model's error.
"""

from __future__ import annotations

import signal
from typing import Any

from env_servers.env import Env, Step

from .conventions import CONVENTIONS, DEFAULT, convention_of
from .sandbox import Execution, Sandbox


class PythonEnv(Env):
    """Runs each action as a Python script of its own."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._convention = DEFAULT

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Read the convention from the task. Raises ValueError if the task asks for state, which this class does not
        keep."""
        if task.get("stateful"):
            raise ValueError(
                'task["stateful"] needs warm workers, and this server runs without them. Start it so that they come up,'
                " or send false."
            )
        self._convention = convention_of(task)
        return ""

    async def step(self, action: str, deadline_s: float) -> Step:
        """Run the action and return what the model reads of it."""
        return judge(await self._sandbox.run(action), self._convention)


def judge(execution: Execution, convention: str = DEFAULT) -> Step:
    """Return an execution as a step: the text for the model by the convention, the signals for the reward."""
    error = error_type(execution)
    text, succeeded = CONVENTIONS[convention](execution, error)
    signals = {
        "executed": execution.compiled,
        "error_type": error,
        "return_code": execution.return_code,
        "stdout_truncated": execution.stdout_truncated,
        "seconds": round(execution.seconds, 4),
    }
    return Step(observation=text, outcome="ok" if succeeded else "model_error", signals=signals)


def error_type(execution: Execution) -> str | None:
    """Return how an execution failed, as in the signal `error_type`; None if it ended well."""
    if execution.killed is not None:
        return execution.killed
    if execution.return_code == 0:
        return None
    if execution.return_code == -signal.SIGXCPU:
        return "time_limit"
    if not execution.compiled:
        return "syntax"
    last_line = execution.stderr.rstrip().rpartition(b"\n")[2]
    return "memory" if last_line.startswith(b"MemoryError") else "exception"
