"""Start and stop containers of this machine with the `docker` command, for machines with a daemon and no runtime API.

    docker run -d ... IMAGE COMMAND -> id;  docker port -> its address on loopback, polled until /alive;  docker rm -f

The image holds OpenHands' server of actions, as with a runtime API. Each container has its own key, which keeps other
processes of this machine out of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from .container import Container, Containers
from .faults import ImageUnavailable, RuntimeBroken, RuntimeFault, RuntimeLate
from .http import RuntimeHttp, pause_s

log = logging.getLogger(__name__)
PORT = 60000
"""Port inside the container, at which `--runtime-command` starts the server of actions."""
KEY_ENV = "SESSION_API_KEY"
"""Environment variable in which OpenHands' server of actions finds its key."""
NO_IMAGE = (
    "no such image",
    "pull access denied",
    "manifest unknown",
    "not found: manifest",
    "repository does not exist",
    "executable file not found",
)
"""Parts of Docker's messages when an image does not exist or cannot run."""


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """How containers are started.

    Attributes:
        command: What the container runs: the server of its actions.
        start_s: Seconds from the request to an answering container.
        flags: Flags of `docker run`: --memory, --cpus, --pids-limit, --network.
    """

    command: Sequence[str]
    start_s: float
    flags: Sequence[str]


class Docker(Containers):
    """The containers of this machine."""

    def __init__(self, http: RuntimeHttp, options: DockerOptions) -> None:
        super().__init__(http)
        self._options = options

    async def start(self, image: str) -> Container:
        name = f"tir-{secrets.token_hex(12)}"
        key = secrets.token_hex(16)
        flags = ["--name", name, "--env", KEY_ENV, "--publish", f"127.0.0.1::{PORT}"]
        self.running += 1
        try:
            async with asyncio.timeout(self._options.start_s):
                await self._docker(
                    "run", "--detach", *flags, *self._options.flags, image, *self._options.command, key=key
                )
                address = (await self._docker("port", name, f"{PORT}/tcp")).split()[0]
                container = Container(self._http, f"http://{address}", name, key)
                polls = 0
                while not await container.is_alive():
                    if (status := await self._docker("inspect", "--format", "{{.State.Status}}", name)) != "running":
                        raise ImageUnavailable(
                            f"a container of {image} does not stay up: {status},"
                            f" {(await self._docker('logs', '--tail', '5', name))[-300:]}"
                        )
                    polls += 1
                    await asyncio.sleep(pause_s(polls))
                return container
        except BaseException as e:
            self._in_background(self._stop(name))
            if isinstance(e, TimeoutError):
                raise RuntimeLate(
                    f"docker had no container of {image} that answers within {self._options.start_s:g} s"
                    " (--start-timeout)."
                ) from None
            if isinstance(e, IndexError):
                raise RuntimeBroken(f"docker published no port {PORT} of {image}.") from None
            raise

    def stop(self, container: Container) -> None:
        self._in_background(self._stop(container.runtime_id))

    async def _stop(self, name: str) -> None:
        try:
            async with asyncio.timeout(self._http.request_s):
                await self._docker("rm", "--force", "--volumes", name)
        except (RuntimeFault, TimeoutError) as e:
            self.stops_failed += 1
            log.warning("a container was not removed", extra={"container": name, "error": f"{type(e).__name__}: {e}"})
        self.running -= 1

    async def _docker(self, *arguments: str, key: str = "") -> str:
        """Run docker and return its output.

        Args:
            *arguments: Its arguments.
            key: Passed in its environment, where no list of processes shows it.

        Raises:
            ImageUnavailable: Docker says that there is no such image.
            RuntimeBroken: It failed otherwise, or could not be run.
        """
        pipe = asyncio.subprocess.PIPE
        null = asyncio.subprocess.DEVNULL
        environment = {**os.environ, KEY_ENV: key} if key else None
        try:
            process = await asyncio.create_subprocess_exec(
                "docker", *arguments, stdin=null, stdout=pipe, stderr=pipe, env=environment
            )
        except OSError as e:  # no process is left, or the command is gone
            raise RuntimeBroken(f"docker {arguments[0]} could not be run: {e}") from None
        try:
            out, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode == 0:
            return out.decode("utf-8", "replace").strip()
        text = errors.decode("utf-8", "replace").strip()[-300:]
        if any(part in text.lower() for part in NO_IMAGE):
            raise ImageUnavailable(f"docker {arguments[0]}: {text}")
        raise RuntimeBroken(f"docker {arguments[0]} failed ({process.returncode}): {text}")
