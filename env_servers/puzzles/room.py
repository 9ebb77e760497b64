"""Generate puzzles and score answers, each in a sandboxed process of its own. The server never runs a scorer itself.

    make(task)                 -> MadePuzzle            raises ValueError: the task's fault
    score(task, entry, answer) -> Verdict               raises VerifierError, SandboxError: a fault, never a score

How a scoring can end, and whose fault it is:
    `cpu_s` seconds of CPU used up, memory, a crash     the answer's: score 0, with the reason in `error`
    not finished within the sandbox's wall clock        the machine's: with CPU left, it was starved or waited
    killed from outside, or no reply                    the machine's
A crash counts as the answer's only if another answer to the same puzzle is scored without one.
"""

from __future__ import annotations

import json
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from env_servers.python_tir.sandbox import Execution, Sandbox
from openrlhf_tir.errors import VerifierError

from .gym import Task

PROGRAM = (
    "from puzzles.inside import main  # sympy: in the interpreter that has it, and reasoning-gym, loaded\nmain()\n"
)
"""The Python code of a call. It names sympy so that it runs in the interpreter that has it, and reasoning-gym,
loaded."""
IMPORTS = ("reasoning_gym.factory",)
"""Modules that a warm interpreter loads once; each call would take 1.5 s to load them."""
_HERE = Path(__file__).parent
FILES = {"puzzles/__init__.py": b""} | {
    f"puzzles/{name}.py": (_HERE / f"{name}.py").read_bytes()
    for name in ("gym", "guard", "inside", "score_bounds", "solvers")
}
KEEP_BYTES = 4 << 20
"""Bytes of a reply that are kept: a puzzle with its question twice. The largest of reasoning-gym has 12 KiB."""
CPU_SPENT = (-signal.SIGPROF, -signal.SIGXCPU)
"""Return codes of a process that used up its CPU."""
ANY_ANSWER = "0"
"""Answer that is scored to find out whether the scorer crashes on any answer."""
MAKE_CPU_S = 20.0
"""CPU seconds in which a puzzle must be generated. knight_swap takes one second; some sokobans and levels never end."""


class MadePuzzle(NamedTuple):
    """A generated puzzle.

    Attributes:
        question: Its text.
        entry: reasoning-gym's record, pickled. Only `score` may use it.
        solution: A right answer; "" if none was asked for or none is known.
    """

    question: str
    entry: str
    solution: str


class Verdict(NamedTuple):
    """Result of scoring an answer.

    Attributes:
        score: How right the answer is, in [0, 1].
        error: Why the text could not be scored: time_limit (CPU), memory, output_flood, crash, or the scorer's
            exception; None if it was scored.
    """

    score: float
    error: str | None


@dataclass(frozen=True, slots=True)
class Room:
    """The sandbox of puzzles. `cpu_s` are the CPU seconds of one answer; the wall clock is
    `sandbox.limits.code_timeout_s`."""

    sandbox: Sandbox
    cpu_s: float

    async def make(self, task: Task, *, solve: bool = False) -> MadePuzzle:
        """Generate a puzzle, and a solution if `solve` is true.

        Raises:
            ValueError: The task cannot be generated.
            VerifierError: The machine or the installation is at fault.
            SandboxError: The sandbox failed.
        """
        execution = await self._run({"do": "make", "task": asdict(task), "solve": solve, "cpu_s": MAKE_CPU_S})
        if execution.return_code in CPU_SPENT or execution.killed == "memory":
            spent = "the memory" if execution.killed else f"{MAKE_CPU_S:g} s of CPU"
            raise ValueError(
                f"puzzle {task.name!r} uses up {spent} that a puzzle has before it is made:"
                f" config {task.config}, level {task.level}. Ask for less."
            )
        reply = _reply(execution)
        if "refused" in reply:
            raise ValueError(reply["refused"])
        return MadePuzzle(reply["question"], reply["entry"], reply["solution"])

    async def score(self, task: Task, entry: str, answer: str) -> Verdict:
        """Score an answer. Raises VerifierError or SandboxError if something else than the answer is at fault."""
        execution = await self._run(
            {"do": "score", "task": asdict(task), "entry": entry, "answer": answer, "cpu_s": self.cpu_s}
        )
        if execution.return_code in CPU_SPENT:
            return Verdict(0.0, "time_limit")
        if execution.killed in ("memory", "output_flood"):
            return Verdict(0.0, execution.killed)
        if execution.return_code in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGFPE):
            if answer == ANY_ANSWER:
                raise VerifierError(
                    f"The scorer of {task.name} died by signal {-execution.return_code}, whatever the answer."
                )
            await self.score(task, entry, ANY_ANSWER)
            return Verdict(0.0, "crash")
        reply = _reply(execution)
        if "fault" in reply:
            raise VerifierError(f"Puzzle {task.name}: {reply['fault']}. Repair the installation of reasoning-gym.")
        return Verdict(reply["score"], reply["error"])

    async def _run(self, request: dict[str, Any]) -> Execution:
        """Run a request in the sandbox. Raises VerifierError if the wall clock ran out, SandboxError if the sandbox
        failed."""
        content = json.dumps(request).encode()
        execution = await self.sandbox.run(PROGRAM, files={**FILES, "request.json": content}, keep_bytes=KEEP_BYTES)
        if execution.killed == "time_limit":
            raise VerifierError(
                f"Puzzle {request['task']['name']}: not finished within --score-deadline"
                f" {self.sandbox.limits.code_timeout_s:g} s, without having had the {request['cpu_s']:g} s of CPU that"
                " it may use: the machine is starved. Give it more cores, use fewer --workers, or raise the deadline."
            )
        return execution

    async def prove(self) -> None:
        """Make and score one puzzle. Raises VerifierError, SandboxError or ValueError if nothing could be served."""
        task = Task("leg_counting", 0)
        await self.score(task, (await self.make(task)).entry, "0")


def _reply(execution: Execution) -> dict[str, Any]:
    """Return the reply of a call. Raises VerifierError if there is none."""
    try:
        reply: dict[str, Any] = json.loads(execution.stdout)
    except ValueError:
        errors = execution.stderr[-500:].decode("utf-8", "replace").strip()
        raise VerifierError(
            f"The scoring process gave no reply (exit code {execution.return_code}, {execution.killed}): {errors}"
        ) from None
    return reply
