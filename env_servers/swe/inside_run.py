"""Inside: hidden tests that import the code into their own process, as SWE-bench runs them. For repositories whose
tests know no other way.

    files, the tests put over them -> one sandbox: pytest is imported first, then the repository's directory comes onto
    the path -> Outcome

Covered: what `suite.CONFIGURATION` names has no effect; an exit code, an exit before the end, a printed report and a
replaced report file decide nothing, for the report comes over a descriptor with a word that only this run has; a run in
which tests that must fail pass is `no_report`. Not covered: code that looks for the test runner among the frames and
objects of its own process and rewrites it there. SWE-bench has the same limit. Tests that must withstand it are written
for `apart`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import secrets
import socket
from collections.abc import Mapping

from env_servers.python_tir.sandbox import Snippet
from env_servers.python_tir.warm.sandbox import WarmSandbox

from .programs import bundle
from .suite import Outcome, Suite

MOST_REPORT_BYTES = 8 << 20


WHOLE_FILES = "--continue-on-collection-errors"


async def run_inside(
    sandbox: WarmSandbox, files: Mapping[str, bytes], suite: Suite, seconds: float, *, whole: bool = False
) -> Outcome:
    """`whole`: all tests of the files of those that must pass, those that can be collected. Raises SandboxError."""
    word = secrets.token_hex(16)
    placed = {f"repo/{path}": content for path, content in {**files, **suite.files}.items()}
    chosen = list(suite.must_pass) or sorted(suite.files)
    if whole:
        chosen = [WHOLE_FILES, *sorted({name.partition("::")[0] for name in chosen})]
    code = bundle("in_process") + f"programs['in_process'].main({word!r}, {chosen!r}, {secrets.token_hex(8)!r})\n"
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    limits = dataclasses.replace(sandbox.limits, code_timeout_s=seconds)
    reading = asyncio.create_task(_read_all(ours), name="report of hidden tests")
    try:
        execution = await sandbox.converse(Snippet(code, files=placed), limits, theirs)
        data = await reading  # nobody holds the other end any more
    finally:
        reading.cancel()
        ours.close()
    if execution.killed is not None:
        return Outcome({}, execution.killed)
    return judge(data, word)


def judge(data: bytes, word: str) -> Outcome:
    """The report, if it is one: once, with the word, and with the controls failed as they must."""
    try:
        report = json.loads(data)
        if report["word"] != word or report["controls"] != ["failed", "failed"]:
            return Outcome({}, "no_report")
        tests = {str(name): str(how) for name, how in report["tests"].items()}
        return Outcome(tests, "ended", report["failures"], report["exit"] == 0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Outcome({}, "no_report")


async def _read_all(sock: socket.socket) -> bytes:
    loop, parts, size = asyncio.get_running_loop(), [], 0
    while part := await loop.sock_recv(sock, 1 << 16):
        size += len(part)
        if size <= MOST_REPORT_BYTES:
            parts.append(part)
    return b"".join(parts)
