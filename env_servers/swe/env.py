"""SweEnv: action = a JSON list of calls of the three tools, run in order; observation = what they say. `finish`, or the
last turn, is graded.

    reset   the task's repository is in a session of its own, at /tmp/NAME (in a container of its own: where its image
            has it)
    step    execute_bash, str_replace_editor -> the session
            finish -> patch -> fresh copy -> hidden tests -> reward 1.0 or 0.0, done
            the `max_turns`-th step is graded as well, and truncated

signals of every step: turn, error_type (None, unknown_function, bad_call, refused, or why a session was ended:
time_limit, memory, output_flood, ended). Of the last one besides: resolved, evaluation (see grade.Report),
tests_passed, tests_total, patch_bytes, patch_left_out, viewed_first (see looks.Looks). What a model does wrong is told
to it; a sandbox that fails raises, which is outcome env_error and no reward."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal

from env_servers.actions import BadAction, cut_to_reply, read_json
from env_servers.admission import CapacityFull
from env_servers.env import Env, Step
from env_servers.python_tir.limits import Limits
from env_servers.python_tir.sandbox import SandboxError
from openrlhf_tir.protocol import Outcome

from .backend import Backend, Work
from .grade import Report
from .looks import Looks
from .session import Said
from .stages import Stages
from .task import SweTask
from .tools import BadCall, checked

ACTION = (
    'a JSON list of calls, [{"name": ..., "arguments": {...}}, ...]; execute_bash(command, is_input), '
    "str_replace_editor(command, path, ...), finish(): /schema has them in full"
)
MAX_CALLS = 16
"""Calls of one action that are carried out."""
MAX_TURNS = 50
"""SkyRL-v0's limit in evaluation; its runs train with 15 to 35."""
MARGIN_S = 5.0
"""Between a command's time and its session's limit: what a tool itself may take, git's work on a patch included."""
MIN_S = 0.25
"""A command's time when those before it have used up what the caller waits: MAX_CALLS of them fit into MARGIN_S."""
LIMITS = Limits(code_timeout_s=30.0, memory_bytes=1 << 30, file_bytes=128 << 20, keep_bytes=1 << 20)


@dataclass(frozen=True, slots=True)
class Shared:
    """What the sessions of one server share."""

    backend: Backend
    stages: Stages
    command_s: float
    """How long one command may take before the model is told that it runs on."""
    max_turns: int = MAX_TURNS
    start_s: float = 60.0
    """How long a session may take to start, its wait for a start worker included."""


@dataclass(slots=True)
class _Turn:
    """An action that is carried out. Where there is no room (CapacityFull: its session was lost, and nobody's else has
    ended) the caller sends it again, and it goes on behind what has been done."""

    action: str
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Those that are left."""
    texts: list[str] = field(default_factory=list)
    error: str | None = None
    end: Literal["finished", "cut", ""] = ""


class SessionLate(SandboxError):
    """A session did not start in time."""


class SweEnv(Env):
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._work: Work | None = None
        self._refused: _Turn | None = None
        """The turn that there was no room for."""

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Raises ValueError for a task that is malformed or whose repository is not there, CapacityFull where too many
        others wait to start, SandboxError."""
        given = SweTask.model_validate(task)
        self._max_turns = min(given.max_turns or self._shared.max_turns, self._shared.max_turns)
        self._turn = 0
        self._over = False
        self._looks = Looks()
        start = self._shared.stages.start
        seconds = self._shared.start_s
        try:
            async with asyncio.timeout(seconds), start.slot():
                self._work = await self._shared.backend.begin(given)
        except TimeoutError:
            raise SessionLate(
                f"no session within {seconds:g} s (--start-timeout); {start.running} start, {start.waiting} wait"
                " (--start-workers)."
            ) from None
        return ""

    async def step(self, action: str, deadline_s: float) -> Step:
        assert self._work is not None, "reset() comes first"
        if self._over:
            return Step(
                "The task is over.",
                done=True,
                outcome="model_error",
                signals={"turn": self._turn, "error_type": "bad_call"},
            )
        turn = self._refused
        self._refused = None
        if turn is None or turn.action != action:
            self._turn += 1
            turn = _begun(action)
        try:
            await self._carry_out(self._work, turn, deadline_s)
            said = cut_to_reply("\n".join(turn.texts))
            error = turn.error
            signals: dict[str, Any] = {"turn": self._turn, "error_type": error}
            outcome: Outcome = "model_error" if error else "ok"
            if not turn.end and self._turn < self._max_turns:
                return Step(said, outcome=outcome, signals=signals)
            self._over = True
            if self.execution_slot is not None:
                self.execution_slot.release()
            async with self._shared.stages.evaluate.slot():
                report, size = await _graded(self._work)
        except CapacityFull:
            self._refused = turn
            self._over = False
            raise
        signals |= {
            **report.signals(),
            "patch_bytes": size,
            "finished": turn.end == "finished",
            "viewed_first": self._looks.viewed_first,
        }
        return Step(
            said,
            reward=float(report.resolved),
            done=turn.end == "finished",
            truncated=turn.end != "finished",
            outcome=outcome,
            signals=signals,
        )

    async def _carry_out(self, work: Work, turn: _Turn, deadline_s: float) -> None:
        """What is left of the turn. Its commands share the time that the caller waits. Raises CapacityFull."""
        clock = asyncio.get_running_loop().time
        give_up = clock() + deadline_s
        while turn.calls:
            name, arguments = turn.calls[0]
            if name == "finish":
                turn.texts.append("The task is finished.")
                turn.calls = []
                turn.end = "cut" if arguments["cut"] else "finished"
                return
            self._looks.note(name, arguments)
            seconds = self._shared.command_s
            if deadline_s > 2 * MARGIN_S:  # a caller that waits for less is late, and learns so
                seconds = min(seconds, max(MIN_S, give_up - clock() - MARGIN_S))
            answer = await _one(work, name, arguments, seconds)
            turn.calls = turn.calls[1:]
            turn.texts.append(answer.text)
            turn.error = turn.error or answer.lost or ("refused" if answer.refused else None)

    async def close(self) -> None:
        if self._work is not None:
            await self._work.close()


async def _one(work: Work, name: str, arguments: dict[str, Any], seconds: float) -> Said:
    """One call of bash, which may take so many seconds, or of the editor."""
    if name == "str_replace_editor":
        rest = {key: value for key, value in arguments.items() if key not in ("command", "path")}
        return await work.edit(arguments["command"], arguments["path"], rest)
    return await work.bash(arguments["command"], arguments.get("is_input", False), seconds)


async def _graded(work: Work) -> tuple[Report, int]:
    """(the verdict, bytes of the patch)."""
    patch = await work.patch()
    if isinstance(patch, Said):
        why = patch.lost if patch.lost in ("patch_too_large", "patch_failed") else "patch_failed"
        return Report(False, why, detail=patch.text), 0
    return await work.judge(patch), len(patch)


def _begun(action: str) -> _Turn:
    try:
        return _Turn(action, _read(action))
    except BadCall as e:
        return _Turn(action, texts=[str(e)], error=e.kind)


def _read(action: str) -> list[tuple[str, dict[str, Any]]]:
    """All calls with checked arguments: if one is wrong, none is run. Raises BadCall."""
    try:
        said = read_json(action)
    except BadAction as e:
        raise BadCall("bad_call", f"{e} Send {ACTION}.") from None
    calls = said if isinstance(said, list) else [said]
    if not all(isinstance(c, dict) for c in calls) or not 0 < len(calls) <= MAX_CALLS:
        raise BadCall("bad_call", f"This is no list of 1 to {MAX_CALLS} calls. Send {ACTION}.")
    return [(c.get("name"), checked(c.get("name"), c.get("arguments", {}))) for c in calls]
