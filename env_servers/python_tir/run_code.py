"""POST /run_code, SandboxFusion's API: code and files -> how it ended. Python only; one fresh process and directory per request.

    RunCodeRequest -> Admission (429 when full) -> Sandbox.run -> CommandRunResult -> parse_run_status -> RunCodeReply

run_result.status   Finished (any return code), TimeLimitExceeded (killed, return_code null), Error (the sandbox failed)
status              SandboxError if anything is Error, its stderr as message; Failed on a time-out or a return code not 0; else Success

Unlike the original, output is read while the code runs: much of it neither blocks the code nor gets lost. At the server's limits code
is killed: return_code -9, and the last line of stderr is MemoryLimitExceeded or OutputLimitExceeded.
Known languages other than python answer SandboxError; unknown ones, a missing field, and paths that leave the directory are HTTP 422.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel, Field, field_validator

from .observation import MEMORY_LIMIT
from .sandbox import Execution, Sandbox, SandboxError

Language = Literal[
    "python", "cpp", "nodejs", "go", "go_test", "java", "php", "csharp", "bash", "typescript", "sql", "rust", "cuda", "lua", "R", "perl", "D_ut",
    "ruby", "scala", "julia", "pytest", "junit", "kotlin_script", "jest", "verilog", "python_gpu", "lean", "swift", "racket",
]  # fmt: skip
RunStatus = Literal["Success", "Failed", "SandboxError"]
CommandStatus = Literal["Finished", "Error", "TimeLimitExceeded"]
OUTPUT_LIMIT = "OutputLimitExceeded"
KEEP_BYTES = 4 << 20
"""Of stdout and of stderr each; the sandbox's flood limit kills what prints much more."""


class RunCodeRequest(BaseModel):
    """Unknown fields are ignored, as clients send their own ids along."""

    code: str
    language: Language
    compile_timeout: float = Field(default=10, description="accepted; Python has no compile step")
    run_timeout: float = Field(default=10, le=3600, allow_inf_nan=False, description="seconds of wall clock")
    memory_limit_MB: int = Field(default=-1, description="address space of each process; 0 and less: the server's limit, which it cannot exceed")
    stdin: str | None = Field(default=None, description="none: end of file at once")
    files: dict[str, str | None] = Field(default_factory=dict, description="path in the working directory -> base64")
    fetch_files: list[str] = Field(default_factory=list, description="paths to hand back; missing ones are left out")

    @field_validator("files")
    @classmethod
    def _decodes(cls, files: dict[str, str | None]) -> dict[str, str | None]:
        for path, content in files.items():
            _stays_inside(path)
            try:
                base64.b64decode(content or "", validate=True)
            except binascii.Error as e:
                raise ValueError(f"{path!r} is not base64: {e}") from None
        return files

    @field_validator("fetch_files")
    @classmethod
    def _inside(cls, paths: list[str]) -> list[str]:
        for path in paths:
            _stays_inside(path)
        return paths

    def contents(self) -> dict[str, bytes]:
        return {path: base64.b64decode(content) for path, content in self.files.items() if content is not None}


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


def add_run_code(app: FastAPI, sandbox: Sandbox) -> None:
    """Serve /run_code next to the environment, with the same places for executions."""

    @app.post("/run_code")
    async def run_code(body: RunCodeRequest) -> RunCodeReply:
        async with app.state.service.admission.slot():
            return await answer(body, sandbox)


async def answer(request: RunCodeRequest, sandbox: Sandbox) -> RunCodeReply:
    files: dict[str, bytes] = {}
    if request.language != "python":
        result = _error(f"language {request.language!r} is not supported here. Send 'python', or use a SandboxFusion server.")
    else:
        try:
            execution = await sandbox.run(
                request.code,
                stdin=(request.stdin or "").encode("utf-8", "surrogatepass"),
                files=request.contents(),
                fetch=request.fetch_files,
                timeout_s=request.run_timeout,
                memory_bytes=request.memory_limit_MB << 20 if request.memory_limit_MB > 0 else None,
                keep_bytes=KEEP_BYTES,
            )
            result, files = command_result(execution), dict(execution.files)
        except SandboxError as e:
            result = _error(str(e))
    status, message = parse_run_status(None, result)
    encoded = {path: base64.b64encode(content).decode() for path, content in files.items()}
    return RunCodeReply(status=status, message=message, run_result=result, files=encoded)


def command_result(e: Execution) -> CommandRunResult:
    common: dict[str, Any] = {"execution_time": e.seconds, "stdout": _text(e.stdout)}
    if e.killed == "time_limit":
        return CommandRunResult(status="TimeLimitExceeded", stderr=_text(e.stderr), **common)
    if e.killed is None:
        return CommandRunResult(status="Finished", return_code=e.return_code, stderr=_text(e.stderr), **common)
    reason = MEMORY_LIMIT if e.killed == "memory" else OUTPUT_LIMIT
    return CommandRunResult(status="Finished", return_code=-9, stderr=f"{_text(e.stderr)}\n{reason}\n".lstrip("\n"), **common)


def parse_run_status(compile_result: CommandRunResult | None, run_result: CommandRunResult | None) -> tuple[RunStatus, str]:
    """(status, message) of a request from its parts, worst first."""
    parts = [part for part in (compile_result, run_result) if part is not None]
    for part in parts:
        if part.status == "Error":
            return "SandboxError", part.stderr or ""
    failed = any(part.status == "TimeLimitExceeded" or part.return_code not in (None, 0) for part in parts)
    return ("Failed" if failed else "Success"), ""


def _error(message: str) -> CommandRunResult:
    return CommandRunResult(status="Error", stderr=message)


def _text(output: bytes) -> str:
    """Bytes that are no UTF-8 read as the original has it."""
    try:
        return output.decode()
    except UnicodeDecodeError as e:
        return f"[DecodeError] {e}"


def _stays_inside(path: str) -> None:
    if not path or path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise ValueError(f"{path!r} is not a path below the working directory")
