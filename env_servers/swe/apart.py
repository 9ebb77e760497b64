"""Apart: hidden tests against code that runs in another process, each in a sandbox of its own, with a socket between
them.

    files -> subject (imports the code, answers calls)  <- socket ->  examiner (pytest, the tests) -> Outcome

The code sees arguments and nothing else: neither tests nor report nor expected values are in a process or a file that
it can reach. It can end its process, hang or send nonsense, and then the tests fail. That a subject's sandbox breaks is
a SandboxError, as is an examiner that ends without a report though nothing made it exceed a limit.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
from collections.abc import Mapping

from env_servers.python_tir.sandbox import Execution, SandboxError, Snippet
from env_servers.python_tir.warm.sandbox import WarmSandbox

from .programs import bundle
from .suite import Outcome, Suite

MARGIN_S = 10.0
"""The examiner ends after the subject: what hangs is then the subject's fault."""


async def examine(sandbox: WarmSandbox, files: Mapping[str, bytes], suite: Suite, seconds: float) -> Outcome:
    """Two places of the sandbox are held meanwhile. `seconds` of wall clock for the code. Raises SandboxError."""
    ours, theirs = socket.socketpair()
    limits = dataclasses.replace(sandbox.limits, code_timeout_s=seconds)
    code = bundle("wire", "subject") + "programs['subject'].main(programs['wire'], ['/tmp/repo'])\n"
    placed = {f"repo/{path}": content for path, content in files.items()}
    subject = asyncio.create_task(sandbox.converse(Snippet(code, files=placed), limits, theirs), name="subject")
    given = f"{list(suite.packages)!r}, {sorted(suite.files)!r}, {list(suite.must_pass)!r}"
    questions = bundle("wire", "examiner") + f"programs['examiner'].main(programs['wire'], {given})\n"
    more_time = dataclasses.replace(limits, code_timeout_s=seconds + MARGIN_S)
    try:
        execution = await sandbox.converse(Snippet(questions, files=suite.files), more_time, ours)
    finally:
        ours.close()
        ended_before = subject.done()
        subject.cancel()
        [end] = await asyncio.gather(subject, return_exceptions=True)
    if isinstance(end, SandboxError):
        raise end
    cut = end.killed if ended_before and isinstance(end, Execution) else None
    return outcome(execution, cut)


def outcome(execution: Execution, cut: str | None = None) -> Outcome:
    """What the examiner reported. `cut`: why its subject was ended. Raises SandboxError where there is no report and no
    limit was passed."""
    if execution.killed is not None:
        return Outcome({}, execution.killed)
    try:
        report = json.loads(execution.stdout.splitlines()[-1])
        return Outcome(report["tests"], cut or "ended", report["failures"], report["exit"] == 0)
    except (ValueError, LookupError, TypeError):
        said = (execution.stderr or execution.stdout)[-500:].decode("utf-8", "replace")
        raise SandboxError(f"the hidden tests gave no report (exit code {execution.return_code}): {said}") from None
