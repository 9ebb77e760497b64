"""POST /run_code, SandboxFusion's API: code and files -> how it ended. Python, and the `languages` that are installed;
a fresh directory per request.

    RunCodeRequest -> Admission (429 when full) -> Sandbox -> CommandRunResult -> parse_run_status -> RunCodeReply

compile_result      of a language with a compiler: what it said. Where it failed there is no run_result, and the status
                    is Failed
run_result.status   Finished (any return code), TimeLimitExceeded (killed, return_code null), Error (the sandbox failed)
status              SandboxError if anything is Error, its stderr as message; Failed on a time-out or a return code not
                    0; else Success

Unlike the original, output is read while the code runs: much of it neither blocks the code nor gets lost. At the
server's limits code is killed: return_code -9, and the last line of stderr is MemoryLimitExceeded or
OutputLimitExceeded. Known languages that are not there answer SandboxError; unknown ones, a missing field, paths that
leave the directory, and limits under which no interpreter can start are HTTP 422. A client that hangs up, queued or
running, takes its code along."""

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
KEEP_BYTES = 4 << 20
"""Bytes that are kept of stdout and of stderr each; the sandbox's flood limit kills what prints much more."""
MIN_TIMEOUT_S = 0.1
MAX_TIMEOUT_S = 3600
MIN_MEMORY_MB = 32
"""Below these an interpreter does not come up on every machine, and what fails is the sandbox instead of the code."""


def _room_for_python(memory_mb: int) -> int:
    if 0 < memory_mb < MIN_MEMORY_MB:
        raise ValueError(
            f"{memory_mb} MB hold no Python interpreter. Give {MIN_MEMORY_MB} or more, or 0 for the server's limit."
        )
    return memory_mb


Seconds = Annotated[float, Field(ge=MIN_TIMEOUT_S, le=MAX_TIMEOUT_S, allow_inf_nan=False)]
Megabytes = Annotated[int, Field(ge=-(1 << 31), lt=1 << 31), AfterValidator(_room_for_python)]


class RunCodeRequest(BaseModel):
    """Unknown fields are ignored, as clients send their own ids along."""

    code: str
    language: Language
    compile_timeout: float = Field(
        default=10, allow_inf_nan=False, description="seconds of the compiler, 0.1 to 3600; Python has none"
    )
    run_timeout: Seconds = Field(default=10, description="seconds of wall clock")
    memory_limit_MB: Megabytes = Field(
        default=-1, description="address space of each process; 0 and less: the server's limit, which it cannot exceed"
    )
    stdin: str | None = Field(default=None, description="none: end of file at once")
    files: Files = Field(default_factory=dict, description="path in the working directory -> base64")
    fetch_files: FetchFiles = Field(default_factory=list, description="paths to hand back; missing ones are left out")


class CommandRunResult(BaseModel):
    status: CommandStatus
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class RunCodeReply(BaseModel):
    status: RunStatus
    message: str
    compile_result: CommandRunResult | None = None
    run_result: CommandRunResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = Field(default_factory=dict)


def add_run_code(app: FastAPI, sandbox: Sandbox, languages: Languages | None = None) -> None:
    """Serve /run_code next to the environment, with the same places for executions. `languages`: those but Python."""

    @app.post("/run_code")
    async def run_code(body: RunCodeRequest, request: Request) -> RunCodeReply:
        async def in_turn() -> RunCodeReply:
            async with app.state.service.admission.slot():
                return await answer(body, sandbox, languages)

        return await unless_client_leaves(request.receive, in_turn())


async def answer(request: RunCodeRequest, sandbox: Sandbox, languages: Languages | None = None) -> RunCodeReply:
    """Raises CapacityFull."""
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
        # the boundary, as SandboxFusion's: whatever breaks here is the sandbox's fault, never the code's
        log.exception("the sandbox failed")
        run_result = _error(f"{type(e).__name__}: {e}")
    status, message = parse_run_status(compile_result, run_result)
    if left_out:
        named = ", ".join(f"{path} ({size} bytes)" for path, size in left_out.items())
        message = f"{message} Not handed back: {named}; all files together may have {FETCH_BYTES} bytes.".lstrip()
    return RunCodeReply(
        status=status, message=message, compile_result=compile_result, run_result=run_result, files=encoded(files)
    )


async def _executed(request: RunCodeRequest, sandbox: Sandbox, languages: Languages | None) -> Results:
    """Raises SandboxError for a language that is not here, too."""
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
    here = languages.names if languages is not None else []
    if languages is None or request.language not in here:
        known = ", ".join(repr(name) for name in ("python", *here))
        raise SandboxError(
            f"language {request.language!r} is not supported here. Send one of {known}, or use a SandboxFusion server."
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


def command_result(e: Execution) -> CommandRunResult:
    common: dict[str, Any] = {"execution_time": e.seconds, "stdout": as_text(e.stdout)}
    if e.killed == "time_limit":
        return CommandRunResult(status="TimeLimitExceeded", stderr=as_text(e.stderr), **common)
    if e.killed is None:
        return CommandRunResult(status="Finished", return_code=e.return_code, stderr=as_text(e.stderr), **common)
    reason = MEMORY_LIMIT if e.killed == "memory" else OUTPUT_LIMIT
    return CommandRunResult(
        status="Finished", return_code=-9, stderr=f"{as_text(e.stderr)}\n{reason}\n".lstrip("\n"), **common
    )


def parse_run_status(
    compile_result: CommandRunResult | None, run_result: CommandRunResult | None
) -> tuple[RunStatus, str]:
    """(status, message) of a request from its parts, worst first."""
    parts = [part for part in (compile_result, run_result) if part is not None]
    for part in parts:
        if part.status == "Error":
            return "SandboxError", part.stderr or ""
    failed = any(part.status == "TimeLimitExceeded" or part.return_code not in (None, 0) for part in parts)
    return ("Failed" if failed else "Success"), ""


def _error(message: str) -> CommandRunResult:
    return CommandRunResult(status="Error", stderr=message)


def as_text(output: bytes) -> str:
    """Bytes that are no UTF-8 read as the original has it."""
    try:
        return output.decode()
    except UnicodeDecodeError as e:
        return f"[DecodeError] {e}"
