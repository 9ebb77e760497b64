"""POST /run_code, SandboxFusion's API: run code with files in a fresh directory and return how it ended.

    RunCodeRequest -> Admission (429 when full) -> Sandbox -> CommandRunResult -> parse_run_status -> RunCodeReply

compile_result      output of the compiler, if the language has one. If it failed there is no run_result, and the
                    status is Failed
run_result.status   Finished (any return code), TimeLimitExceeded (killed, return_code null), Error (the sandbox failed)
status              SandboxError if anything is Error, with its stderr as message; Failed for a time-out or a return
                    code other than 0; otherwise Success

Unlike in the original, output is read while the code runs: much output neither blocks the code nor is lost. Code is
killed at the server's limits: return_code -9, and the last line of stderr is MemoryLimitExceeded or
OutputLimitExceeded. A known language that is not installed gives SandboxError; an unknown one, a missing field, a path
that leaves the directory, and limits under which no interpreter can start are HTTP 422. When a client hangs up, its
code is stopped, whether it waits or runs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from pydantic import AfterValidator, BaseModel, Field

from env_servers.admission import CapacityFull
from openrlhf_tir.http_guard.leaving import unless_client_leaves

from .files import FetchFiles, Files, decoded, encoded
from .languages import Languages, Results
from .observation import MEMORY_LIMIT
from .sandbox import FETCH_BYTES, Execution, Sandbox, SandboxError

log = logging.getLogger(__name__)

Language = Literal[
    "python", "cpp", "nodejs", "go", "go_test", "java", "php", "csharp", "bash", "typescript", "sql", "rust", "cuda",
    "lua", "R", "perl", "D_ut", "ruby", "scala", "julia", "pytest", "junit", "kotlin_script", "jest", "verilog",
    "python_gpu", "lean", "swift", "racket",
]  # fmt: skip
RunStatus = Literal["Success", "Failed", "SandboxError"]
CommandStatus = Literal["Finished", "Error", "TimeLimitExceeded"]
OUTPUT_LIMIT = "OutputLimitExceeded"
"""Status word for code that was killed because of its output."""
KEEP_BYTES = 4 << 20
"""Bytes kept of stdout and of stderr each. The sandbox's flood limit kills code that prints much more."""
MIN_TIMEOUT_S = 0.1
MAX_TIMEOUT_S = 3600
MIN_MEMORY_MB = 32
"""With less memory or time an interpreter does not start on every machine: the sandbox would fail, not the code."""


def _check_memory(memory_mb: int) -> int:
    """Return the limit. Raises ValueError if no interpreter can start within it."""
    if 0 < memory_mb < MIN_MEMORY_MB:
        raise ValueError(
            f"{memory_mb} MB hold no Python interpreter. Give {MIN_MEMORY_MB} or more, or 0 for the server's limit."
        )
    return memory_mb


def _at_most_an_hour(seconds: float) -> float:
    return min(MAX_TIMEOUT_S, seconds)


Seconds = Annotated[float, Field(ge=MIN_TIMEOUT_S, allow_inf_nan=False), AfterValidator(_at_most_an_hour)]
Megabytes = Annotated[int, Field(ge=-(1 << 31), lt=1 << 31), AfterValidator(_check_memory)]


class RunCodeRequest(BaseModel):
    """Body of a request. Unknown fields are ignored, because clients send ids of their own along.

    The fields have SandboxFusion's order, in which a reply of 422 lists the faults.
    """

    compile_timeout: float = Field(
        default=10, allow_inf_nan=False, description="seconds of the compiler, 0.1 to 3600; unused for Python"
    )
    run_timeout: Seconds = Field(default=10, description="seconds of wall clock; more than 3600 count as 3600")
    memory_limit_MB: Megabytes = Field(
        default=-1, description="address space of each process, at most the server's limit; 0 and less: that limit"
    )
    code: str
    stdin: str | None = Field(default=None, description="standard input; null: end of file at once")
    language: Language
    files: Files = Field(default_factory=dict, description="path in the working directory -> base64")
    fetch_files: FetchFiles = Field(default_factory=list, description="paths to return; missing files are left out")


class CommandRunResult(BaseModel):
    """How one command (compiler or program) ended."""

    status: CommandStatus
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class RunCodeReply(BaseModel):
    """Body of a reply."""

    status: RunStatus
    message: str
    compile_result: CommandRunResult | None = None
    run_result: CommandRunResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = Field(default_factory=dict)


def add_run_code(app: FastAPI, sandbox: Sandbox, languages: Languages) -> None:
    """Serve /run_code next to the environment, within the same execution slots.

    Args:
        app: The app of the environment.
        sandbox: Runs the code.
        languages: Languages besides Python.
    """

    @app.post("/run_code")
    async def run_code(body: RunCodeRequest, request: Request) -> RunCodeReply:
        async def admitted_answer() -> RunCodeReply:
            async with app.state.service.admission.slot():
                return await answer(body, sandbox, languages)

        return await unless_client_leaves(request.receive, admitted_answer())


async def answer(request: RunCodeRequest, sandbox: Sandbox, languages: Languages) -> RunCodeReply:
    """Run a request and return the reply.

    Raises:
        CapacityFull: The backend of the sandbox is full. Every other failure is part of the reply.
    """
    compile_result: CommandRunResult | None = None
    run_result: CommandRunResult | None = None
    files: Mapping[str, bytes] = {}
    left_out: Mapping[str, int] = {}
    try:
        compiled, ran, files = await _executed(request, sandbox, languages)
        compile_result = command_result(compiled) if compiled is not None else None
        run_result = command_result(ran) if ran is not None else None
        left_out = next((part.left_out for part in (ran, compiled) if part is not None), {})
    except SandboxError as e:
        run_result = _error(str(e))
    except CapacityFull:
        raise
    except Exception as e:
        # As in SandboxFusion: any other exception is the sandbox's fault, never the code's.
        log.exception("the sandbox failed")
        run_result = _error(f"{type(e).__name__}: {e}")
    status, message = parse_run_status(compile_result, run_result)
    if left_out:
        names = ", ".join(f"{path} ({size} bytes)" for path, size in left_out.items())
        message = f"{message} Not returned: {names}; all files together may have {FETCH_BYTES} bytes.".lstrip()
    return RunCodeReply(
        status=status, message=message, compile_result=compile_result, run_result=run_result, files=encoded(files)
    )


async def _executed(request: RunCodeRequest, sandbox: Sandbox, languages: Languages) -> Results:
    """Run the code of a request. Raises SandboxError, also for a language that is not installed."""
    stdin = (request.stdin or "").encode("utf-8", "surrogatepass")
    memory_bytes = request.memory_limit_MB << 20 if request.memory_limit_MB > 0 else None
    files = decoded(request.files)
    fetch = request.fetch_files
    if request.language == "python":
        ran = await sandbox.run(
            request.code,
            stdin=stdin,
            files=files,
            fetch=fetch,
            timeout_s=request.run_timeout,
            memory_bytes=memory_bytes,
            keep_bytes=KEEP_BYTES,
        )
        return Results(None, ran, ran.files)
    if request.language not in languages.names:
        choices = ", ".join(repr(name) for name in ("python", *languages.names))
        raise SandboxError(
            f"language {request.language!r} is not supported here."
            f" Send one of {choices}, or use a SandboxFusion server."
        )
    return await languages.execute(
        request.language,
        request.code,
        stdin=stdin,
        files=files,
        fetch=fetch,
        compile_s=min(MAX_TIMEOUT_S, max(MIN_TIMEOUT_S, request.compile_timeout)),
        run_s=request.run_timeout,
        memory_bytes=memory_bytes,
        keep_bytes=KEEP_BYTES,
    )


def command_result(execution: Execution) -> CommandRunResult:
    """Return an execution as SandboxFusion reports it."""
    common: dict[str, Any] = {"execution_time": execution.seconds, "stdout": as_text(execution.stdout)}
    if execution.killed == "time_limit":
        return CommandRunResult(status="TimeLimitExceeded", stderr=as_text(execution.stderr), **common)
    if execution.killed is None:
        return CommandRunResult(
            status="Finished", return_code=execution.return_code, stderr=as_text(execution.stderr), **common
        )
    reason = MEMORY_LIMIT if execution.killed == "memory" else OUTPUT_LIMIT
    return CommandRunResult(
        status="Finished", return_code=-9, stderr=f"{as_text(execution.stderr)}\n{reason}\n".lstrip("\n"), **common
    )


def parse_run_status(
    compile_result: CommandRunResult | None, run_result: CommandRunResult | None
) -> tuple[RunStatus, str]:
    """Return status and message of a request from the results of its commands, the worst first."""
    parts = [part for part in (compile_result, run_result) if part is not None]
    for part in parts:
        if part.status == "Error":
            return "SandboxError", part.stderr or ""
    failed = any(part.status == "TimeLimitExceeded" or part.return_code not in (None, 0) for part in parts)
    return ("Failed" if failed else "Success"), ""


def _error(message: str) -> CommandRunResult:
    return CommandRunResult(status="Error", stderr=message)


def as_text(output: bytes) -> str:
    """Return output as text. Bytes that are not UTF-8 become the same sentence as in the original."""
    try:
        return output.decode()
    except UnicodeDecodeError as e:
        return f"[DecodeError] {e}"
