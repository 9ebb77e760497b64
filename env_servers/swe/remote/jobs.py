"""Jobs: a bash script in a container, apart from the model's own bash -> its exit status and the files that it leaves
in ./out.

    upload (script and files) -> start it, in a session of its own -> wait, in requests of some seconds -> download

Tests take minutes, and what stands between here and a container cuts a connection that is silent for so long. Commands
are words without quotes: OpenHands hands a static command to a shell in more than one way.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .container import Container
from .faults import RuntimeBroken, RuntimeFault, RuntimeLate

WAIT_S = 15
"""One request's wait; OpenHands ends a static command after 30 s."""
MARGIN_S = 30.0
TIME_LIMIT = (124, 137)
_START = """cd "$(dirname "$0")" || exit 1
mkdir -p out
export HOME="${{HOME:-/root}}"
setsid bash -c 'timeout -k 5 {seconds:g} bash run.sh > out/log 2>&1; echo $? > status.part; mv status.part status' \\
    > /dev/null 2>&1 < /dev/null &
echo started
"""
_WAIT = """cd "$(dirname "$0")" || exit 1
for _ in $(seq {tenths}); do [ -e status ] && break; sleep 0.1; done
echo "ended: $(cat status 2> /dev/null)"
"""


@dataclass(frozen=True, slots=True)
class Done:
    status: int
    """Exit status of the script; one of TIME_LIMIT when it was ended."""
    out: Mapping[str, bytes]

    @property
    def log(self) -> str:
        return self.out.get("log", b"")[-500:].decode("utf-8", "replace").strip()


async def run_job(container: Container, script: str, files: Mapping[str, bytes], seconds: float) -> Done:
    """`script` runs in a new directory that holds `files`, for `seconds` at most. Raises RuntimeFault: with `began`
    where it may have run."""
    place = f"/tmp/tir-{secrets.token_hex(12)}"
    scripts = {
        "run.sh": script,
        "start.sh": _START.format(seconds=seconds),
        "wait.sh": _WAIT.format(tenths=WAIT_S * 10),
    }
    await container.upload(place, {**files, **{name: text.encode() for name, text in scripts.items()}})
    said = await _static(container, f"bash {place}/start.sh")
    if "started" not in said:
        raise RuntimeBroken(f"a script did not start in the container: {said[:300]}")
    try:
        return await _ended(container, place, seconds)
    except RuntimeFault as e:
        e.began = True
        raise


async def _ended(container: Container, place: str, seconds: float) -> Done:
    try:
        async with asyncio.timeout(seconds + MARGIN_S):
            status = ""
            while not status:
                status = (await _static(container, f"bash {place}/wait.sh")).rpartition("ended:")[2].strip()
    except TimeoutError:
        raise RuntimeLate(f"a script that was to end after {seconds:g} s had not ended {MARGIN_S:g} s later.") from None
    if not status.isdigit():
        raise RuntimeBroken(f"the container told no exit status of a script: {status[:100]!r}")
    return Done(int(status), await container.download(f"{place}/out"))


async def _static(container: Container, command: str) -> str:
    args: dict[str, Any] = {
        "command": command,
        "is_input": False,
        "blocking": True,
        "is_static": True,
        "cwd": "/",
        "hidden": True,
    }
    told = await container.execute("run", args, WAIT_S + MARGIN_S)
    if told.get("observation") != "run":
        raise RuntimeBroken(f"{command} was no command there: {json.dumps(told)[:300]}")
    return str(told["content"])
