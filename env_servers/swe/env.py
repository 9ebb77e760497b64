"""An environment whose action is a JSON list of calls of three tools, run in order. `finish`, or the last turn, is
graded.

    reset   the task's repository is in a session of its own, at /tmp/NAME (in a container: where its image has it)
    step    execute_bash, str_replace_editor -> the session
            finish -> patch -> fresh copy -> hidden tests -> reward 1.0 or 0.0, done
            the `max_turns`-th step is graded as well, and truncated

Signals of every step: turn, error_type (None, unknown_function, bad_call, refused, or why a session was ended:
time_limit, memory, output_flood, ended). Of the last step also: resolved, evaluation (see grade.Report), tests_passed,
tests_total, patch_bytes, patch_left_out, viewed_first (see views.ViewTracker). A mistake of the model is an
observation; a sandbox that fails raises, which is outcome env_error without a reward.
"""

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
from .session import ToolResult
from .stages import Stages
from .task import SweTask
from .tools import BadCall, checked
from .views import ViewTracker

ACTION = (
    'a JSON list of calls, [{"name": ..., "arguments": {...}}, ...]; execute_bash(command, is_input), '
    "str_replace_editor(command, path, ...), finish(): /schema has them in full"
)
"""What an action is, for /schema and for messages to the model."""
MAX_CALLS = 16
"""Largest number of calls in one action."""
MAX_TURNS = 50
"""SkyRL-v0's limit in evaluation; its runs train with 15 to 35."""
MARGIN_S = 5.0
"""Seconds between the time of a command and the limit of its session: what a tool itself may take."""
MIN_S = 0.25
"""Seconds of a command if those before it have used up the time that the caller waits. MAX_CALLS of them fit into
MARGIN_S."""
LIMITS = Limits(code_timeout_s=30.0, memory_bytes=1 << 30, file_bytes=128 << 20, keep_bytes=1 << 20)
"""Default limits of a session."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the sessions of one server share.

    Attributes:
        backend: Starts the sessions.
        stages: Limits on starts and evaluations.
        command_s: Seconds after which the model reads that a command is still running.
        max_turns: Steps of a session.
        start_s: Seconds in which a session must start, its wait for a start worker included.
    """

    backend: Backend
    stages: Stages
    command_s: float
    max_turns: int = MAX_TURNS
    start_s: float = 60.0


@dataclass(slots=True)
class _Turn:
    """An action that is being carried out.

    If there is no room for it (CapacityFull: its session was lost, and no other one has ended) the caller sends the
    action again, and it continues after the calls that were carried out.

    Attributes:
        action: The action.
        calls: The calls that are left: name and checked arguments.
        texts: Results of the calls before them.
        error: The first error type.
        end: How the turn ends the episode; "" if it does not.
    """

    action: str
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    error: str | None = None
    end: Literal["finished", "cut", ""] = ""


class SessionLate(SandboxError):
    """Raised when a session does not start in time."""


class SweEnv(Env):
    """An episode of one task."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._work: Work | None = None
        self._refused: _Turn | None = None
        """The turn for which there was no room, if the last one was refused."""

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Start a session.

        Raises:
            ValueError: The task is malformed, or its repository is missing.
            CapacityFull: Too many sessions wait to start.
            SandboxError: The session did not start.
        """
        swe_task = SweTask.model_validate(task)
        self._max_turns = min(swe_task.max_turns or self._shared.max_turns, self._shared.max_turns)
        self._turn = 0
        self._over = False
        self._views = ViewTracker()
        start = self._shared.stages.start
        seconds = self._shared.start_s
        try:
            async with asyncio.timeout(seconds), start.slot():
                self._work = await self._shared.backend.begin(swe_task)
        except TimeoutError:
            raise SessionLate(
                f"no session within {seconds:g} s (--start-timeout); {start.running} start, {start.waiting} wait"
                " (--start-workers)."
            ) from None
        return ""

    async def step(self, action: str, deadline_s: float) -> Step:
        """Carry out calls, and grade the episode if it ends."""
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
            turn = _parsed_turn(action)
        try:
            await self._carry_out(self._work, turn, deadline_s)
            observation = cut_to_reply("\n".join(turn.texts))
            error = turn.error
            signals: dict[str, Any] = {"turn": self._turn, "error_type": error}
            outcome: Outcome = "model_error" if error else "ok"
            if not turn.end and self._turn < self._max_turns:
                return Step(observation, outcome=outcome, signals=signals)
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
            "viewed_first": self._views.viewed_first,
        }
        return Step(
            observation,
            reward=float(report.resolved),
            done=turn.end == "finished",
            truncated=turn.end != "finished",
            outcome=outcome,
            signals=signals,
        )

    async def _carry_out(self, work: Work, turn: _Turn, deadline_s: float) -> None:
        """Carry out the calls that are left of a turn. They share the time that the caller waits. Raises
        CapacityFull."""
        clock = asyncio.get_running_loop().time
        deadline_at = clock() + deadline_s
        while turn.calls:
            name, arguments = turn.calls[0]
            if name == "finish":
                turn.texts.append("The task is finished.")
                turn.calls = []
                turn.end = "cut" if arguments["cut"] else "finished"
                return
            self._views.note(name, arguments)
            seconds = self._shared.command_s
            if deadline_s > 2 * MARGIN_S:  # with less time the step simply misses its deadline
                seconds = min(seconds, max(MIN_S, deadline_at - clock() - MARGIN_S))
            answer = await _call(work, name, arguments, seconds)
            turn.calls = turn.calls[1:]
            turn.texts.append(answer.text)
            turn.error = turn.error or answer.lost or ("refused" if answer.refused else None)

    async def close(self) -> None:
        if self._work is not None:
            await self._work.close()


async def _call(work: Work, name: str, arguments: dict[str, Any], seconds: float) -> ToolResult:
    """Carry out one call of bash, for at most `seconds`, or of the editor."""
    if name == "str_replace_editor":
        options = {key: value for key, value in arguments.items() if key not in ("command", "path")}
        return await work.edit(arguments["command"], arguments["path"], options)
    return await work.bash(arguments["command"], arguments.get("is_input", False), seconds)


async def _graded(work: Work) -> tuple[Report, int]:
    """Judge the session's patch. Return the verdict and the bytes of the patch."""
    patch = await work.patch()
    if isinstance(patch, ToolResult):
        reason = patch.lost if patch.lost in ("patch_too_large", "patch_failed") else "patch_failed"
        return Report(False, reason, detail=patch.text), 0
    return await work.judge(patch), len(patch)


def _parsed_turn(action: str) -> _Turn:
    """Return the turn of an action. A malformed action gives a turn without calls."""
    try:
        return _Turn(action, _read(action))
    except BadCall as e:
        return _Turn(action, texts=[str(e)], error=e.kind)


def _read(action: str) -> list[tuple[str, dict[str, Any]]]:
    """Return all calls with checked arguments. If one is wrong, none is run. Raises BadCall."""
    try:
        value = read_json(action, ACTION)
    except BadAction as e:
        raise BadCall("bad_call", str(e)) from None
    calls = value if isinstance(value, list) else [value]
    if not all(isinstance(call, dict) for call in calls) or not 0 < len(calls) <= MAX_CALLS:
        raise BadCall("bad_call", f"This is no list of 1 to {MAX_CALLS} calls. Send {ACTION}.")
    return [(call.get("name"), checked(call.get("name"), call.get("arguments", {}))) for call in calls]
