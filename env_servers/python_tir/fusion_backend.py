"""Run snippets on a SandboxFusion server (`POST /run_code`), ours or the original, instead of on this machine.

    code -> RunCodeRequest -> the server -> RunCodeReply -> Execution

The server isolates the code. 429 becomes CapacityFull; a server that is unreachable, broken or answers SandboxError
becomes SandboxError. The API does not say that code failed to compile, so an uncaught SyntaxError without a traceback
above it is taken as that.
"""

from __future__ import annotations

import base64
import binascii

import aiohttp
from pydantic import ValidationError

from env_servers.admission import CapacityFull

from .limits import Limits
from .observation import MEMORY_LIMIT
from .run_code import (
    MIN_MEMORY_MB,
    MIN_TIMEOUT_S,
    OUTPUT_LIMIT,
    RunCodeReply,
    RunCodeRequest,
    parse_run_status,
)
from .sandbox import Execution, Killed, Sandbox, SandboxError, Snippet

GRACE_S = 5.0
"""Seconds for which the reply is awaited beyond the time of the snippet."""
REPLY_BYTES = 64 << 20
"""Bytes of a reply that are read."""
MAX_RETRY_AFTER_S = 60
_KILLED: dict[str, Killed] = {MEMORY_LIMIT: "memory", OUTPUT_LIMIT: "output_flood"}


class FusionSandbox(Sandbox):
    """A sandbox on another server."""

    isolation = "sandboxfusion"

    def __init__(self, url: str, limits: Limits, *, token: str | None) -> None:
        """Create the client; nothing is sent yet.

        Args:
            url: Base URL of the server.
            limits: Default limits of a call.
            token: Bearer token.

        Raises:
            SandboxError: The URL has no scheme.
        """
        if not url.startswith(("http://", "https://")):
            raise SandboxError(f"the backend URL {url!r} has no scheme. Write http://host:port.")
        self.url = url.rstrip("/") + "/run_code"
        self.limits = limits
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http: aiohttp.ClientSession | None = None

    async def execute(self, snippet: Snippet, limits: Limits) -> Execution:
        """Run a snippet on the server. Raises SandboxError, and CapacityFull if the server is full."""
        request = RunCodeRequest(
            code=snippet.code,
            language="python",
            run_timeout=max(MIN_TIMEOUT_S, limits.code_timeout_s),
            memory_limit_MB=max(MIN_MEMORY_MB, limits.memory_bytes >> 20),
            stdin=snippet.stdin.decode("utf-8", "surrogatepass"),
            files={path: base64.b64encode(content).decode() for path, content in snippet.files.items()},
            fetch_files=list(snippet.fetch),
        )
        return execution_of(await self._post(request, limits), limits, self.url)

    async def _post(self, request: RunCodeRequest, limits: Limits) -> RunCodeReply:
        """Send a request and return the reply, checked. Raises SandboxError, and CapacityFull if the server is full."""
        if self._http is None:
            self._http = aiohttp.ClientSession(headers=self._headers, connector=aiohttp.TCPConnector(limit=0))
        timeout = aiohttp.ClientTimeout(total=limits.code_timeout_s + limits.start_timeout_s + GRACE_S)
        try:
            async with self._http.post(
                self.url, json=request.model_dump(), timeout=timeout, allow_redirects=False
            ) as response:
                body = await response.content.read(REPLY_BYTES + 1)
                while len(body) <= REPLY_BYTES and (chunk := await response.content.read(REPLY_BYTES + 1 - len(body))):
                    body += chunk
        except (aiohttp.ClientError, TimeoutError) as e:
            raise SandboxError(f"{self.url} does not answer ({type(e).__name__}: {e}). Is the server up?") from e
        if response.status == 429:
            header = response.headers.get("Retry-After", "")
            is_number = header.isascii() and header.isdigit() and len(header) < 6
            raise CapacityFull(f"{self.url} is full", min(MAX_RETRY_AFTER_S, int(header)) if is_number else 1)
        if len(body) > REPLY_BYTES:
            raise SandboxError(
                f"{self.url} sent more than {REPLY_BYTES >> 20} MiB. Ask for less output, or for fewer files."
            )
        if response.status != 200:
            raise SandboxError(f"{self.url} answered HTTP {response.status}: {body[:200]!r}")
        try:
            return RunCodeReply.model_validate_json(body)
        except ValidationError as e:
            first = e.errors(include_url=False, include_input=False)[0]
            raise SandboxError(
                f"{self.url} sent no SandboxFusion reply: {'.'.join(map(str, first['loc']))}: {first['msg']}"
            ) from None

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None


def execution_of(reply: RunCodeReply, limits: Limits, url: str) -> Execution:
    """Return the Execution that a server's reply reports, with its output cut to the limits.

    Raises:
        SandboxError: The server could not run the code, whatever status its reply has. `url` names it in the message.
    """
    result = reply.run_result
    status, reason = parse_run_status(reply.compile_result, result)
    if result is None or "SandboxError" in (status, reply.status):
        raise SandboxError(f"{url} failed: {reply.message or reason or 'no reason given'}")
    try:
        files = {path: base64.b64decode(content) for path, content in reply.files.items()}
    except (binascii.Error, ValueError) as e:
        raise SandboxError(f"{url} sent a file that is not base64: {e}") from None
    stdout = (result.stdout or "").encode("utf-8", "surrogatepass")
    stderr = (result.stderr or "").encode("utf-8", "surrogatepass")
    killed: Killed | None = "time_limit" if result.status == "TimeLimitExceeded" else None
    last_line = (result.stderr or "").rstrip().rpartition("\n")[2]
    if result.return_code == -9:
        killed = _KILLED.get(last_line)
    return_code = result.return_code
    if return_code is None:  # not every server sends it; the status says whether the code failed
        return_code = int(reply.status != "Success")
    return Execution(
        stdout=stdout[: limits.keep_bytes],
        stderr=stderr[: limits.keep_bytes],
        return_code=None if killed else return_code,
        seconds=result.execution_time or 0.0,
        compiled=not _is_syntax_error(result.stderr or "", last_line),
        killed=killed,
        stdout_truncated=len(stdout) > limits.keep_bytes,
        files=files,
    )


def _is_syntax_error(stderr: str, last_line: str) -> bool:
    """Return True if stderr ends in a syntax error that no traceback leads to."""
    return (
        last_line.startswith(("SyntaxError:", "IndentationError:", "TabError:"))
        and "Traceback (most recent call last)" not in stderr
    )
