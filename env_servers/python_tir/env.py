"""PythonEnv: action = Python source; observation by the convention that the task asks for (conventions.py).

Stateless: each step is a fresh process (`stateful` has the other kind).

    Sandbox.run(code) -> Execution -> `judge` -> Step(observation, outcome, signals)

signals: executed (it compiled and ran), error_type (None | syntax | exception | time_limit | memory | output_flood),
return_code, stdout_truncated, seconds. A sandbox that fails raises, which is env_error, never the model's error."""

from __future__ import annotations

import signal
from typing import Any

from env_servers.env import Env, Step

from .conventions import CONVENTIONS, DEFAULT, wanted
from .sandbox import Execution, Sandbox


class PythonEnv(Env):
    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._convention = DEFAULT

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        if task.get("stateful"):
            raise ValueError(
                'task["stateful"] needs warm workers, and this server runs without. Start it so that they come up, or'
                " send false."
            )
        self._convention = wanted(task)
        return ""

    async def step(self, action: str, deadline_s: float) -> Step:
        return judge(await self._sandbox.run(action), self._convention)


def judge(e: Execution, convention: str = DEFAULT) -> Step:
    """An execution as the model and the reward see it."""
    error = error_type(e)
    text, went_well = CONVENTIONS[convention](e, error)
    signals = {
        "executed": e.compiled,
        "error_type": error,
        "return_code": e.return_code,
        "stdout_truncated": e.stdout_truncated,
        "seconds": round(e.seconds, 4),
    }
    return Step(observation=text, outcome="ok" if went_well else "model_error", signals=signals)


def error_type(e: Execution) -> str | None:
    if e.killed is not None:
        return e.killed
    if e.return_code == 0:
        return None
    if e.return_code == -signal.SIGXCPU:
        return "time_limit"
    if not e.compiled:
        return "syntax"
    return "memory" if e.stderr.rstrip().rpartition(b"\n")[2].startswith(b"MemoryError") else "exception"
