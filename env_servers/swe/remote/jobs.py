"""Run a bash script in a container, apart from the model's own bash, and return its exit status and the files in ./out.

    upload (script and files) -> start it in its own session -> wait, in requests of some seconds -> download

Tests take minutes, and proxies between here and a container cut a connection that is silent for so long. Commands are
words without quotes, because OpenHands hands a static command to a shell in more than one way.
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
"""Seconds that one request waits; OpenHands ends a static command after 30 s."""
MARGIN_S = 30.0
"""Seconds added to the limit of a script until its end must be known."""
TIME_LIMIT = (124, 137)
"""Exit statuses of a script that `timeout` has ended."""
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
    """How a script ended.

    Attributes:
        status: Its exit status, one of TIME_LIMIT if it was ended.
        out: The files in ./out.
    """

    status: int
    out: Mapping[str, bytes]

    @property
    def log(self) -> str:
        """The end of the script's output."""
        return self.out.get("log", b"")[-500:].decode("utf-8", "replace").strip()


async def run_job(container: Container, script: str, files: Mapping[str, bytes], seconds: float) -> Done:
    """Run a script in a new directory.

    Args:
        container: The container.
        script: Bash.
        files: Files of the directory.
        seconds: Wall clock.

    Raises:
        RuntimeFault: The container or the runtime failed. `began` is true if the script may have run.
    """
    directory = f"/tmp/tir-{secrets.token_hex(12)}"
    scripts = {
        "run.sh": script,
        "start.sh": _START.format(seconds=seconds),
        "wait.sh": _WAIT.format(tenths=WAIT_S * 10),
    }
    await container.upload(directory, {**files, **{name: text.encode() for name, text in scripts.items()}})
    output = await _static(container, f"bash {directory}/start.sh")
    if "started" not in output:
        raise RuntimeBroken(f"a script did not start in the container: {output[:300]}")
    try:
        return await _ended(container, directory, seconds)
    except RuntimeFault as e:
        e.began = True
        raise


async def run_setup(container: Container, script: str, files: Mapping[str, bytes], seconds: float) -> Done:
    """Run a script in which no code of the model runs, as `run_job`.

    Raises:
        RuntimeFault: As `run_job`. RuntimeLate also if the script reached its limit: the container is slow.
    """
    done = await run_job(container, script, files, seconds)
    if done.status in TIME_LIMIT:
        raise RuntimeLate(
            f"a script of git took more than {seconds:g} s in the container (--runtime-timeout): {done.log}"
        )
    return done


async def _ended(container: Container, directory: str, seconds: float) -> Done:
    """Wait for the end of a script."""
    try:
        async with asyncio.timeout(seconds + MARGIN_S):
            status = ""
            while not status:
                status = (await _static(container, f"bash {directory}/wait.sh")).rpartition("ended:")[2].strip()
    except TimeoutError:
        raise RuntimeLate(f"a script that was to end after {seconds:g} s had not ended {MARGIN_S:g} s later.") from None
    if not (status.isascii() and status.isdigit() and len(status) <= 3):
        raise RuntimeBroken(f"the container reported no exit status of a script: {status[:100]!r}")
    return Done(int(status), await container.download(f"{directory}/out"))


async def _static(container: Container, command: str) -> str:
    """Run a command in a shell of its own and return its output."""
    args: dict[str, Any] = {
        "command": command,
        "is_input": False,
        "blocking": True,
        "is_static": True,
        "cwd": "/",
        "hidden": True,
    }
    observation = await container.execute("run", args, WAIT_S + MARGIN_S)
    if observation.get("observation") != "run":
        raise RuntimeBroken(f"{command} was no command there: {json.dumps(observation)[:300]}")
    return str(observation["content"])
