"""A session whose call is cancelled: the interpreter is gone, and what comes next must know it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from env_servers.python_tir.limits import Limits
from env_servers.python_tir.sandbox import Execution, SandboxError
from env_servers.python_tir.warm.notebooks import Cell
from env_servers.swe import session as session_module
from env_servers.swe.inside.workspace import GIT_S
from env_servers.swe.session import Session

TREE = {"lib.py": (0o100644, b"")}
LIMITS = Limits(code_timeout_s=6.0)
NOTEBOOKS = SimpleNamespace(sandbox=SimpleNamespace(limits=LIMITS))


class Interpreter:
    """A notebook that hangs when it is told to; a cancelled call ends it, as the real one's does."""

    def __init__(self, _notebooks: object) -> None:
        self.has_workspace = False
        self.seconds: dict[str, float] = {}

    async def run(self, code: str, limits: Limits | None = None) -> Cell:
        self.seconds[code.partition("(")[0]] = (limits or LIMITS).code_timeout_s
        if "workspace.open(" in code:
            self.has_workspace = True
            return self._cell(b"{}\n")
        if not self.has_workspace:
            return Cell(Execution(b"", b"NameError: name 'workspace' is not defined", 1, 0.0), True, True)
        if "hang" in code:
            try:
                await asyncio.Event().wait()
            finally:
                self.has_workspace = False
        answer = {"patch": ""} if "patch" in code else {"text": "hello", "code": 0, "directory": "/tmp/lib"}
        return self._cell(json.dumps(answer).encode())

    def _cell(self, stdout: bytes) -> Cell:
        return Cell(Execution(stdout, b"", 0, 0.0), False, True)

    async def close(self) -> None:
        pass


@pytest.fixture
async def cut(monkeypatch):
    """A session one of whose calls was given up."""
    monkeypatch.setattr(session_module, "Notebook", Interpreter)
    session = Session(NOTEBOOKS, "/tmp/lib", TREE)
    await session.open()
    call = asyncio.create_task(session.bash("hang", False, 1.0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    return session


async def test_the_model_reads_once_that_its_session_was_restarted(cut):
    lost = await cut.bash("echo hello", False, 1.0)
    assert lost.lost == "time_limit"
    again = await cut.bash("echo hello", False, 1.0)
    assert again.lost is None and again.text.startswith("hello")
    assert await cut.patch() == b""


async def test_work_lost_to_a_deadline_is_not_judged_as_an_empty_patch(cut):
    with pytest.raises(SandboxError):
        await cut.patch()


async def test_git_has_its_time_for_a_patch_however_little_a_command_of_the_model_has(monkeypatch):
    monkeypatch.setattr(session_module, "Notebook", Interpreter)
    session = Session(NOTEBOOKS, "/tmp/lib", TREE)
    await session.bash("echo hello", False, 1.0)
    assert await session.patch() == b""
    seconds = session._notebook.seconds
    assert seconds["workspace.bash"] == 6.0 and seconds["workspace.patch"] > 2 * GIT_S
