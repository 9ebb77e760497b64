"""One copy of a repository in its own interpreter (`python_tir`'s notebooks), and the tools at work on it.

    open -> cell: the files, a git directory, a Workspace       start: a fork of a warm interpreter and some files
    bash, edit -> cell -> JSON                                  nothing of it runs between two calls
    patch -> cell -> git patch                                  every other process of the session is dead by then
    close -> every process is dead, the files are gone

The output of the session is the model's and never trusted: texts to show, and a patch that is judged elsewhere.
"""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass
from typing import Any

from env_servers.python_tir.limits import Limits
from env_servers.python_tir.sandbox import SandboxError
from env_servers.python_tir.warm.notebooks import Notebook, Notebooks

from .busy import TIME_LIMIT, refuse_if_busy
from .grade import MAX_PATCH_BYTES
from .inside.workspace import GIT_S
from .programs import bundle, unpacking
from .tree import Tree, git_directory

PATCH_S = 2 * GIT_S + 5.0
"""Seconds of the call that makes a patch, which runs git twice, however little time a command of the model has."""
_OPEN = """
import sys as _sys
_editor = programs["editor"]
workspace = programs["workspace"].Workspace(programs["shell"].Shell, _editor.Editor, _editor.Refused)
workspace.open(*{arguments}, ":".join(p for p in _sys.path if p.endswith("-packages")))
"""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of one call.

    Attributes:
        text: What the model reads.
        refused: True if the tool refused the call.
        lost: Why the session ended with the call (time_limit, memory, output_flood, ended), after which its files are
            those of the start; None if it did not.
    """

    text: str
    refused: bool = False
    lost: str | None = None


class Session:
    """A repository in a session's interpreter."""

    def __init__(self, notebooks: Notebooks, root: str, tree: Tree) -> None:
        """Create a session; its first call, or `open`, starts it.

        Args:
            notebooks: The server's interpreters.
            root: Directory of the repository in the session.
            tree: The repository.
        """
        self._notebooks = notebooks
        self._notebook = Notebook(notebooks)
        self._root = root
        self._tree = tree
        self._is_open = False
        self._was_cut = False
        """True if a call was cancelled (its caller's deadline passed), and the interpreter ended with it."""

    async def open(self) -> None:
        """Start an interpreter with the repository's files in it.

        Raises:
            SandboxError: The interpreter did not start.
            CapacityFull: There are too many sessions already.
        """
        # In a thread, because hashing and compressing tens of thousands of files takes seconds.
        arguments = await asyncio.to_thread(self._packed_repository)
        cell = await self._notebook.run(bundle("shell", "editor", "workspace") + _OPEN.format(arguments=arguments))
        if not cell.alive or cell.execution.stdout != b"{}\n":
            output = (cell.execution.killed or cell.execution.stderr[-500:].decode("utf-8", "replace")) or "nothing"
            raise SandboxError(
                f"a session did not open; its output: {output}. A repository that has no room needs a larger"
                " --files-mib or --memory-mib."
            )
        self._is_open = True

    def _packed_repository(self) -> str:
        """Return an expression for the session: its root, the repository's files and a git directory."""
        return unpacking((self._root, dict(self._tree), git_directory(self._tree)))

    async def bash(self, command: str, is_input: bool, seconds: float) -> ToolResult:
        """Run a command for at most `seconds`, or send input to the running one. Raises SandboxError."""
        answer = await self._ask(f"workspace.bash({command!r}, {is_input!r}, {seconds!r})")
        if isinstance(answer, ToolResult):
            return answer
        text = printable(answer["text"])
        code = answer["code"]
        if text and not text.endswith("\n"):
            text += "\n"
        if code is None:
            return ToolResult(f"{text}[The command runs on after {seconds:g} seconds. Exit code -1]")
        directory = printable(answer["directory"])
        return ToolResult(f"{text}[Current working directory: {directory}]\n[Command finished with exit code {code}]")

    async def edit(self, command: str, path: str, arguments: dict[str, Any]) -> ToolResult:
        """Run a command of the editor. Raises SandboxError."""
        answer = await self._ask(f"workspace.edit({command!r}, {path!r}, {arguments!r})")
        return (
            answer
            if isinstance(answer, ToolResult)
            else ToolResult(printable(answer["text"]), refused=bool(answer.get("refused")))
        )

    async def patch(self) -> bytes | ToolResult:
        """Return the session's patch; a ToolResult with the reason in `lost` if the model itself has made it
        impossible.

        Raises:
            SandboxError: The sandbox failed, or a deadline has ended the session and the work with it, or git reached
                its time limit on a busy machine.
        """
        if self._was_cut:
            raise SandboxError("a step of the session ran out of time, and the work in it is gone")
        limits = self._notebooks.sandbox.limits
        seconds = max(PATCH_S, limits.code_timeout_s)
        answer = await self._ask(f"workspace.patch({MAX_PATCH_BYTES})", limits.for_call(seconds, None, None))
        is_late = answer.lost == TIME_LIMIT if isinstance(answer, ToolResult) else "is_late" in answer
        if is_late:
            await refuse_if_busy(self._notebooks.sandbox)
        if isinstance(answer, ToolResult):
            return answer
        if "patch" in answer:
            return base64.b64decode(answer["patch"])
        if "too_large" in answer:
            return ToolResult(f"{answer['too_large']} bytes; at most {MAX_PATCH_BYTES}", lost="patch_too_large")
        return ToolResult(printable(answer.get("error")), lost="patch_failed")

    async def _ask(self, code: str, limits: Limits | None = None) -> dict[str, Any] | ToolResult:
        """Run a method of the workspace and return its answer; a ToolResult if the session has ended.

        Args:
            code: The call.
            limits: Its limits; None: the sandbox's.
        """
        if self._was_cut:
            self._was_cut = False
            return _lost("time_limit")
        if not self._is_open:
            await self.open()
        # A cancelled call ends the interpreter: the next call must not look for a workspace in a new one.
        self._is_open = False
        try:
            cell = await self._notebook.run(code + "\n", limits)
        except asyncio.CancelledError:
            self._was_cut = True
            raise
        self._is_open = cell.alive
        try:
            if cell.execution.killed is None and cell.execution.return_code == 0:
                answer = json.loads(cell.execution.stdout)
                if isinstance(answer, dict):
                    return answer
        except ValueError:
            pass
        if cell.alive:  # only our own code runs in the interpreter, so this is no failure of the model's command
            raise SandboxError(f"a session's tool failed: {cell.execution.stderr[-500:].decode('utf-8', 'replace')}")
        return _lost(cell.execution.killed or "ended")

    async def close(self) -> None:
        """End the session."""
        await self._notebook.close()


def _lost(reason: str) -> ToolResult:
    """Return what the model reads when its session has ended."""
    text = (
        f"The session was ended ({reason}) and begins anew: bash is fresh, and the files are as they were at the start."
    )
    return ToolResult(f"[{text}]", lost=reason)


def printable(text: object) -> str:
    """Return a text that a reply can hold. Names of files may have bytes that are not text."""
    return str(text).encode("utf-8", "replace").decode()
