"""Session: one copy of a repository in an interpreter of its own (`python_tir`'s notebooks), and what the tools do to
it.

    open -> cell: the files, a git directory, a Workspace       start: a fork of a warm interpreter and some files
    bash, edit -> cell -> JSON                                  nothing of it runs between two calls
    patch -> cell -> git patch                                  every other process of the session is dead by then
    close -> every process is dead, the files are gone

What the session says is the model's word: texts to show, and a patch that is judged elsewhere.
"""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass
from typing import Any

from env_servers.python_tir.sandbox import SandboxError
from env_servers.python_tir.warm.notebooks import Notebook, Notebooks

from .programs import bundle, unpacking
from .tree import Tree, git_directory

MAX_PATCH_BYTES = 512 << 10
"""The most bytes of a patch: as base64 it fits into what is kept of a session's output (`env.LIMITS`)."""
_OPEN = """
import sys as _sys
_editor = programs["editor"]
workspace = programs["workspace"].Workspace(programs["shell"].Shell, _editor.Editor, _editor.Refused)
workspace.open(*{given}, ":".join(p for p in _sys.path if p.endswith("-packages")))
"""


@dataclass(frozen=True, slots=True)
class Said:
    """The answer of one call. `lost`: why the session ended with it (time_limit, memory, output_flood, ended); its
    files are those of the start then."""

    text: str
    refused: bool = False
    lost: str | None = None


class Session:
    def __init__(self, notebooks: Notebooks, root: str, tree: Tree) -> None:
        """`root`: where the repository is, inside."""
        self._notebook = Notebook(notebooks)
        self._root = root
        self._tree = tree
        self._is_open = False
        self._was_cut = False
        """A call was cancelled (its caller's deadline passed), and the interpreter ended with it."""

    async def open(self) -> None:
        """Start an interpreter with the repository's files in it.

        Raises:
            SandboxError: The interpreter did not start.
            CapacityFull: There are too many sessions already.
        """
        # Hashing and compressing tens of thousands of files takes seconds, which the event loop does not have.
        given = await asyncio.to_thread(self._packed_repository)
        cell = await self._notebook.run(bundle("shell", "editor", "workspace") + _OPEN.format(given=given))
        if not cell.alive or cell.execution.stdout != b"{}\n":
            said = (cell.execution.killed or cell.execution.stderr[-500:].decode("utf-8", "replace")) or "nothing"
            raise SandboxError(f"a session did not open; it said: {said}")
        self._is_open = True

    def _packed_repository(self) -> str:
        """Return an expression for the session: its root, the repository's files and a git directory."""
        return unpacking((self._root, dict(self._tree), git_directory(self._tree)))

    async def bash(self, command: str, is_input: bool, seconds: float) -> Said:
        answer = await self._ask(f"workspace.bash({command!r}, {is_input!r}, {seconds!r})")
        if isinstance(answer, Said):
            return answer
        text = shown(answer["text"])
        code = answer["code"]
        if text and not text.endswith("\n"):
            text += "\n"
        if code is None:
            return Said(f"{text}[The command runs on after {seconds:g} seconds. Exit code -1]")
        return Said(
            f"{text}[Current working directory: {shown(answer['directory'])}]\n[Command finished with exit code {code}]"
        )

    async def edit(self, command: str, path: str, arguments: dict[str, Any]) -> Said:
        answer = await self._ask(f"workspace.edit({command!r}, {path!r}, {arguments!r})")
        return answer if isinstance(answer, Said) else Said(shown(answer["text"]), refused=bool(answer.get("refused")))

    async def patch(self) -> bytes | Said:
        """Return the session's patch, or what the model did that there is none, with the reason in `lost`.

        Raises:
            SandboxError: The sandbox failed, or a deadline has ended the session and the work with it.
        """
        if self._was_cut:
            raise SandboxError("a step of the session ran out of time, and the work in it is gone")
        answer = await self._ask(f"workspace.patch({MAX_PATCH_BYTES})")
        if isinstance(answer, Said):
            return answer
        if "patch" in answer:
            return base64.b64decode(answer["patch"])
        if "too_large" in answer:
            return Said(f"{answer['too_large']} bytes; at most {MAX_PATCH_BYTES}", lost="patch_too_large")
        return Said(shown(answer.get("error")), lost="patch_failed")

    async def _ask(self, code: str) -> dict[str, Any] | Said:
        if self._was_cut:
            self._was_cut = False
            return _lost("time_limit")
        if not self._is_open:
            await self.open()
        # A cancelled call ends the interpreter: what comes next must not look for a workspace in a new one.
        self._is_open = False
        try:
            cell = await self._notebook.run(code + "\n")
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
        if cell.alive:  # the interpreter is ours alone: what fails in it is no tool's answer
            raise SandboxError(f"a session's tool failed: {cell.execution.stderr[-500:].decode('utf-8', 'replace')}")
        return _lost(cell.execution.killed or "ended")

    async def close(self) -> None:
        await self._notebook.close()


def _lost(why: str) -> Said:
    """Return what a model is told of a session that has ended."""
    return Said(
        f"[The session was ended ({why}) and begins anew: bash is fresh, and the files are as they were at the start.]",
        lost=why,
    )


def shown(text: object) -> str:
    """Names of files may be any bytes, which no reply can hold."""
    return str(text).encode("utf-8", "replace").decode()
