"""POST /run_jupyter, SandboxFusion's API: cells that share one interpreter -> what each printed, displayed and raised.

    RunJupyterRequest -> Admission (429 when full) -> a session of its own -> a call per cell -> RunJupyterReply

A cell that raises is no failure: it has an `error`, and the next one runs. status is Failed where the interpreter did
not reach the end: a cell or the request ran out of time, a limit killed it, or the code ended it; unlike the original,
the cells so far are in the reply then, and `cell_timeout` counts. `driver` says how it ended, as run_result does for
/run_code.
Source of shapes and rules: SandboxFusion's sandbox_api.py and runners/jupyter.py.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from fastapi import FastAPI, Request
from pydantic import BaseModel, Field, ValidationError

from env_servers.admission import CapacityFull
from openrlhf_tir.http_guard.leaving import unless_client_leaves

from .files import FetchFiles, Files
from .limits import Limits
from .run_code import KEEP_BYTES, OUTPUT_LIMIT, CommandRunResult, RunStatus, Seconds, as_text, command_result
from .sandbox import SandboxError
from .warm.call import Slot
from .warm.notebooks import Cell, Notebook, Notebooks

log = logging.getLogger(__name__)

MAX_CELLS = 256
REPLY_BYTES = 32 << 20
"""Bytes of all cells' output; more than that ends the request as a flood does."""
FETCH_BYTES = 8 << 20
TELL_BYTES = 16 << 20
"""What the interpreter may say about a cell, or hand back as files, base64 included."""
TELL_S = 30.0
NO_WARM = "/run_jupyter needs warm workers, and this server runs without. Start it so that they come up."
INSIDE = Path(__file__).with_name("cells.py").read_text()
_PLACE = "_cells"
_SET_UP = f"""import sys
sys.modules[{_PLACE!r}] = type(sys)({_PLACE!r})
sys.modules[{_PLACE!r}].__file__ = "<{_PLACE}>"
exec(compile({INSIDE!r}, "<{_PLACE}>", "exec"), sys.modules[{_PLACE!r}].__dict__)
del sys"""


class RunJupyterRequest(BaseModel):
    cells: list[str] = Field(max_length=MAX_CELLS)
    cell_timeout: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = Field(
        default=0, description="seconds per cell; 0: only the total counts"
    )
    total_timeout: Seconds = Field(default=45, description="seconds of all cells together")
    kernel: Literal["python3"] = "python3"
    files: Files = Field(default_factory=dict, description="path in the working directory -> base64")
    fetch_files: FetchFiles = Field(default_factory=list, description="paths to hand back; missing ones are left out")


class CellError(BaseModel):
    ename: str
    evalue: str
    traceback: list[str]


class CellResult(BaseModel):
    stdout: str = ""
    stderr: str = ""
    display: list[dict[str, str]] = Field(
        default_factory=list, description="media type -> text or base64, one object per value shown"
    )
    error: list[CellError] = Field(default_factory=list)


class RunJupyterReply(BaseModel):
    status: RunStatus
    message: str = ""
    driver: CommandRunResult | None = None
    cells: list[CellResult] = Field(default_factory=list)
    executor_pod_name: str | None = None
    files: dict[str, str] = Field(default_factory=dict)


class _Told(BaseModel):
    display: list[dict[str, str]] = Field(default_factory=list)
    error: list[CellError] = Field(default_factory=list)


class _Fetched(BaseModel):
    files: dict[str, str] = Field(default_factory=dict)
    left_out: dict[str, int] = Field(default_factory=dict)


Told = TypeVar("Told", _Told, _Fetched)


def add_run_jupyter(app: FastAPI, notebooks: Notebooks | None) -> None:
    """Serve /run_jupyter next to the environment, within its places and the sessions' budget. None: no warm workers,
    said in the reply."""

    @app.post("/run_jupyter")
    async def run_jupyter(body: RunJupyterRequest, request: Request) -> RunJupyterReply:
        if notebooks is None:
            return RunJupyterReply(status="SandboxError", message=NO_WARM)

        async def in_turn() -> RunJupyterReply:
            async with app.state.service.admission.slot():
                return await answer(body, notebooks)

        return await unless_client_leaves(request.receive, in_turn())


async def answer(request: RunJupyterRequest, notebooks: Notebooks) -> RunJupyterReply:
    """Raises CapacityFull."""
    conversation = _Conversation(notebooks)
    try:
        return await conversation.hold(request)
    except _Ended as e:
        return RunJupyterReply(status="Failed", driver=e.args[0], cells=conversation.cells)
    except CapacityFull:
        raise
    except Exception as e:  # the boundary, as for /run_code
        if not isinstance(e, SandboxError):
            log.exception("the sandbox failed")
        return RunJupyterReply(status="SandboxError", message=str(e) or type(e).__name__)
    finally:
        await conversation.notebook.close()


class _Ended(Exception):
    """The interpreter is gone before the last cell: a CommandRunResult says how."""


@dataclass
class _Sandbox:
    open_session: Callable[[], Awaitable[Slot]]
    limits: Limits


class _Conversation:
    """A request's session: the server's notebooks, whose places and memory it counts against, with its own limits."""

    def __init__(self, notebooks: Notebooks) -> None:
        self.sandbox = _Sandbox(notebooks.sandbox.open_session, notebooks.sandbox.limits)
        self.admit = notebooks.admit
        self.measured = notebooks.measured
        self.ended = notebooks.ended
        self._limits = notebooks.sandbox.limits
        self.notebook = Notebook(self)
        self.cells: list[CellResult] = []
        self._start = time.monotonic()

    async def hold(self, request: RunJupyterRequest) -> RunJupyterReply:
        """Raises _Ended, SandboxError, CapacityFull."""
        said = 0
        files = {path: content for path, content in request.files.items() if content is not None}
        ready = await self._call(f"{_SET_UP}\n__import__({_PLACE!r}).put({files!r})", TELL_S, TELL_BYTES)
        if ready.execution.return_code != 0:
            raise SandboxError(f"the interpreter took no files: {as_text(ready.execution.stderr)[-500:]}")
        clock = time.monotonic()  # from here on it is the code's time
        for source in request.cells:
            left = request.total_timeout - (time.monotonic() - clock)
            if left <= 0:
                raise _Ended(self._driver(status="TimeLimitExceeded"))
            result = CellResult()
            self.cells.append(result)
            cell = await self._call(
                f"__import__({_PLACE!r}).run({source!r})", min(left, request.cell_timeout or left), KEEP_BYTES, result
            )
            told = await self._told("tell(", _Told)
            result.display = told.display
            result.error = told.error
            said += (
                len(cell.execution.stdout)
                + len(cell.execution.stderr)
                + sum(len(text) for shown in told.display for text in shown.values())
            )
            if said > REPLY_BYTES:
                raise _Ended(self._driver(status="Finished", return_code=-9, stderr=f"{OUTPUT_LIMIT}\n"))
        fetched = (
            await self._told(f"fetch({request.fetch_files!r}, {FETCH_BYTES}, ", _Fetched)
            if request.fetch_files
            else _Fetched()
        )
        files = {path: content for path, content in fetched.files.items() if path in request.fetch_files}
        left_out = [f"{path} ({size} bytes)" for path, size in fetched.left_out.items() if path in request.fetch_files]
        message = (
            f"Not handed back: {', '.join(left_out)}; all files together may have {FETCH_BYTES} bytes."
            if left_out
            else ""
        )
        return RunJupyterReply(
            status="Success",
            message=message,
            driver=self._driver(status="Finished", return_code=0, stdout="", stderr=""),
            cells=self.cells,
            files=files,
        )

    async def _told(self, call: str, kind: type[Told]) -> Told:
        """What the interpreter says of its last cell, or its files. Nothing where it says what it was not asked."""
        mark = secrets.token_hex(8)
        said = (await self._call(f"__import__({_PLACE!r}).{call}{mark!r})", TELL_S, TELL_BYTES)).execution.stdout
        _, found, text = said.rpartition(f"\n{mark}".encode())
        try:
            return kind.model_validate_json(text.split(b"\n", 1)[0]) if found else kind()
        except ValidationError:
            return kind()

    async def _call(self, source: str, seconds: float, keep_bytes: int, result: CellResult | None = None) -> Cell:
        """Raises _Ended where no state is left to go on with; `result` has then what the cell printed."""
        flood = max(self._limits.flood_bytes, 2 * keep_bytes)
        self.sandbox.limits = replace(self._limits, code_timeout_s=seconds, keep_bytes=keep_bytes, flood_bytes=flood)
        cell = await self.notebook.run(source)
        if result is not None:
            result.stdout = as_text(cell.execution.stdout)
            result.stderr = as_text(cell.execution.stderr)
        if not cell.alive:
            how = command_result(replace(cell.execution, stdout=b"", stderr=b""))  # what it printed is the cell's
            raise _Ended(how.model_copy(update={"execution_time": time.monotonic() - self._start}))
        return cell

    def _driver(self, **fields: Any) -> CommandRunResult:
        return CommandRunResult(execution_time=time.monotonic() - self._start, **fields)
