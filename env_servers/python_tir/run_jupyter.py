"""POST /run_jupyter, SandboxFusion's API: run cells that share one interpreter and return what each printed and
displayed.

    RunJupyterRequest -> Admission (429 when full) -> its own session -> one call per cell -> RunJupyterReply

A cell that raises is not a failure: it has an `error`, and the next one runs. The status is Failed if the interpreter
ended before the last cell: a cell or the request ran out of time, a limit killed it, or the code ended it. Unlike in
the original, the reply then has the cells so far, and `cell_timeout` counts. `driver` says how the interpreter ended,
as run_result does for /run_code. Source of shapes and rules: SandboxFusion's sandbox_api.py and runners/jupyter.py.
"""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from fastapi import FastAPI, Request
from pydantic import BaseModel, Field, ValidationError

from env_servers.admission import CapacityFull
from openrlhf_tir.http_guard.leaving import unless_client_leaves

from .files import FetchFiles, Files
from .run_code import KEEP_BYTES, OUTPUT_LIMIT, CommandRunResult, RunStatus, Seconds, as_text, command_result
from .sandbox import SandboxError
from .warm.notebooks import Cell, Notebook, Notebooks

log = logging.getLogger(__name__)

MAX_CELLS = 256
REPLY_BYTES = 32 << 20
"""Bytes of the output of all cells; more ends the request as a flood does."""
FETCH_BYTES = 8 << 20
"""Bytes of all files that a request returns."""
REPORT_BYTES = 16 << 20
"""Bytes that the interpreter may report about a cell or return as files, including base64."""
REPORT_S = 30.0
"""Seconds within which it must do so."""
NO_WARM = "/run_jupyter needs warm workers, and this server runs without them. Start it so that they come up."
CELLS_SOURCE = Path(__file__).with_name("cells.py").read_text()
_MODULE = "_cells"
"""Name under which cells.py is found in the session's interpreter."""
_SET_UP = f"""import sys
sys.modules[{_MODULE!r}] = type(sys)({_MODULE!r})
sys.modules[{_MODULE!r}].__file__ = "<{_MODULE}>"
exec(compile({CELLS_SOURCE!r}, "<{_MODULE}>", "exec"), sys.modules[{_MODULE!r}].__dict__)
del sys"""


class RunJupyterRequest(BaseModel):
    """Body of a request."""

    cells: list[str] = Field(max_length=MAX_CELLS)
    cell_timeout: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = Field(
        default=0, description="seconds per cell; 0: only the total counts"
    )
    total_timeout: Seconds = Field(default=45, description="seconds of all cells together")
    kernel: Literal["python3"] = "python3"
    files: Files = Field(default_factory=dict, description="path in the working directory -> base64")
    fetch_files: FetchFiles = Field(default_factory=list, description="paths to return; missing files are left out")


class CellError(BaseModel):
    """An exception of a cell."""

    ename: str
    evalue: str
    traceback: list[str]


class CellResult(BaseModel):
    """What a cell printed, displayed and raised."""

    stdout: str = ""
    stderr: str = ""
    display: list[dict[str, str]] = Field(
        default_factory=list, description="media type -> text or base64, one object per value shown"
    )
    error: list[CellError] = Field(default_factory=list)


class RunJupyterReply(BaseModel):
    """Body of a reply."""

    status: RunStatus
    message: str = ""
    driver: CommandRunResult | None = None
    cells: list[CellResult] = Field(default_factory=list)
    executor_pod_name: str | None = None
    files: dict[str, str] = Field(default_factory=dict)


class _CellReport(BaseModel):
    """What `cells.tell` prints."""

    display: list[dict[str, str]] = Field(default_factory=list)
    error: list[CellError] = Field(default_factory=list)


class _Fetched(BaseModel):
    """What `cells.fetch` prints."""

    files: dict[str, str] = Field(default_factory=dict)
    left_out: dict[str, int] = Field(default_factory=dict)


Report = TypeVar("Report", _CellReport, _Fetched)


def add_run_jupyter(app: FastAPI, notebooks: Notebooks | None) -> None:
    """Serve /run_jupyter next to the environment, within its execution slots and the sessions' budget.

    Args:
        app: The app of the environment.
        notebooks: The server's interpreters that keep state; None: there are no warm workers, and the reply says so.
    """

    @app.post("/run_jupyter")
    async def run_jupyter(body: RunJupyterRequest, request: Request) -> RunJupyterReply:
        if notebooks is None:
            return RunJupyterReply(status="SandboxError", message=NO_WARM)

        async def admitted_answer() -> RunJupyterReply:
            async with app.state.service.admission.slot():
                return await answer(body, notebooks)

        return await unless_client_leaves(request.receive, admitted_answer())


async def answer(request: RunJupyterRequest, notebooks: Notebooks) -> RunJupyterReply:
    """Run a request and return the reply.

    Raises:
        CapacityFull: No session is free. Every other failure is part of the reply.
    """
    conversation = _Conversation(notebooks)
    try:
        return await conversation.run(request)
    except _InterpreterEnded as e:
        return RunJupyterReply(status="Failed", driver=e.result, cells=conversation.cells)
    except CapacityFull:
        raise
    except Exception as e:  # as for /run_code: any other exception is the sandbox's fault
        if not isinstance(e, SandboxError):
            log.exception("the sandbox failed")
        return RunJupyterReply(status="SandboxError", message=str(e) or type(e).__name__)
    finally:
        await conversation.notebook.close()


class _InterpreterEnded(Exception):
    """Raised when the interpreter is gone before the last cell. `result` says how it ended."""

    def __init__(self, result: CommandRunResult) -> None:
        super().__init__(result)
        self.result = result


class _Conversation:
    """The session of one request. It counts against the server's notebooks and their memory, with its own limits."""

    def __init__(self, notebooks: Notebooks) -> None:
        self._limits = notebooks.sandbox.limits
        self.notebook = Notebook(notebooks)
        self.cells: list[CellResult] = []
        self._start = time.monotonic()

    async def run(self, request: RunJupyterRequest) -> RunJupyterReply:
        """Run all cells and return the reply.

        Raises:
            _InterpreterEnded: The interpreter ended before the last cell. `cells` has the results so far.
            SandboxError: The sandbox failed.
            CapacityFull: No session is free.
        """
        await self._write_files(request)
        deadline = time.monotonic() + request.total_timeout  # the time of the code starts only here
        printed_bytes = 0
        for source in request.cells:
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                raise _InterpreterEnded(self._driver(status="TimeLimitExceeded"))
            result = CellResult()
            self.cells.append(result)
            seconds = min(seconds_left, request.cell_timeout or seconds_left)
            cell = await self._call(f"__import__({_MODULE!r}).run({source!r})", seconds, KEEP_BYTES, result)
            report = await self._report("tell(", _CellReport)
            result.display = report.display
            result.error = report.error
            printed_bytes += len(cell.execution.stdout) + len(cell.execution.stderr)
            printed_bytes += sum(len(text) for bundle in report.display for text in bundle.values())
            if printed_bytes > REPLY_BYTES:
                flood = self._driver(status="Finished", return_code=-9, stderr=f"{OUTPUT_LIMIT}\n")
                raise _InterpreterEnded(flood)
        fetched = _Fetched()
        if request.fetch_files:
            fetched = await self._report(f"fetch({request.fetch_files!r}, {FETCH_BYTES}, ", _Fetched)
        # The snippet can replace the functions of cells.py: only requested paths are returned.
        files = {path: content for path, content in fetched.files.items() if path in request.fetch_files}
        left_out = [f"{path} ({size} bytes)" for path, size in fetched.left_out.items() if path in request.fetch_files]
        message = ""
        if left_out:
            message = f"Not returned: {', '.join(left_out)}; all files together may have {FETCH_BYTES} bytes."
        return RunJupyterReply(
            status="Success",
            message=message,
            driver=self._driver(status="Finished", return_code=0, stdout="", stderr=""),
            cells=self.cells,
            files=files,
        )

    async def _write_files(self, request: RunJupyterRequest) -> None:
        """Load cells.py into the interpreter and write the files of the request."""
        files = {path: content for path, content in request.files.items() if content is not None}
        ready = await self._call(f"{_SET_UP}\n__import__({_MODULE!r}).put({files!r})", REPORT_S, REPORT_BYTES)
        if ready.execution.return_code != 0:
            raise SandboxError(f"the interpreter took no files: {as_text(ready.execution.stderr)[-500:]}")

    async def _report(self, call: str, kind: type[Report]) -> Report:
        """Call a function of cells.py and return what it prints; an empty report if that is not of the right form.

        Args:
            call: The call without its last argument, which is a random mark. Text that the cell itself has printed
                therefore cannot be taken for the report.
            kind: The type of the report.
        """
        mark = secrets.token_hex(8)
        cell = await self._call(f"__import__({_MODULE!r}).{call}{mark!r})", REPORT_S, REPORT_BYTES)
        _, separator, text = cell.execution.stdout.rpartition(f"\n{mark}".encode())
        if not separator:
            return kind()
        try:
            return kind.model_validate_json(text.split(b"\n", 1)[0])
        except ValidationError:
            return kind()

    async def _call(self, source: str, seconds: float, keep_bytes: int, result: CellResult | None = None) -> Cell:
        """Run source in the session's interpreter.

        Args:
            source: Python source.
            seconds: Wall clock of the call.
            keep_bytes: Bytes kept of each output stream.
            result: Gets what the call printed, also if the interpreter ended.

        Raises:
            _InterpreterEnded: No state is left to continue with.
        """
        flood = max(self._limits.flood_bytes, 2 * keep_bytes)
        limits = replace(self._limits, code_timeout_s=seconds, keep_bytes=keep_bytes, flood_bytes=flood)
        cell = await self.notebook.run(source, limits)
        if result is not None:
            result.stdout = as_text(cell.execution.stdout)
            result.stderr = as_text(cell.execution.stderr)
        if not cell.alive:
            # without the output, which is in `result`
            ended = command_result(replace(cell.execution, stdout=b"", stderr=b""))
            seconds = time.monotonic() - self._start
            raise _InterpreterEnded(ended.model_copy(update={"execution_time": seconds}))
        return cell

    def _driver(self, **fields: Any) -> CommandRunResult:
        """Return how the interpreter ended, with the seconds since the request began."""
        return CommandRunResult(execution_time=time.monotonic() - self._start, **fields)
