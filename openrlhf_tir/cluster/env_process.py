"""EnvProcess: the environment server that a run starts for itself when no `env.url` is given. Restarted if it dies."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ..config import Config
from ..errors import ConfigError, EnvError, TirError, unknown

SERVERS = {"python_tir": "env_servers.python_tir", "echo": "env_servers.echo"}
OWN = "env_servers.own"
"""The server of a class of the user's own, env.file."""
START_TIMEOUT_S = 120
STARTS = 3
"""How often one that is killed while it starts is started again at once, the first included."""
RESTART_PAUSE_S = 2.0
log = logging.getLogger(__name__)


@asynccontextmanager
async def env_urls(cfg: Config) -> AsyncIterator[dict[str, list[str]]]:
    """Environment name -> base URLs. Yields `env.url`'s (comma-separated) if set, else those of a server of our own on loopback."""
    if cfg.env.url:
        yield {cfg.env.name: [u.strip().rstrip("/") for u in cfg.env.url.split(",")]}
        return
    if cfg.env.name not in SERVERS and not cfg.env.file:
        raise unknown("env", cfg.env.name, SERVERS, "Set env.name to one of them, point env.url at a running server, or give env.file.")
    server = _Server(cfg)
    url = await server.start(port=0)
    keeper = asyncio.create_task(server.keep_alive(), name="env server")
    try:
        yield {cfg.env.name: [url]}
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        await server.stop()


class _Server:
    def __init__(self, cfg: Config) -> None:
        self.cfg, self.port, self.process = cfg, 0, None
        self.port_file = Path(cfg.run_dir) / "env_server.port"
        self.log = Path(cfg.run_dir) / "env_server.log"

    async def start(self, port: int) -> str:
        """Returns the URL once the server answers. Raises ConfigError when it ends by itself, EnvError when it is killed or hangs; with the log's end."""
        for _ in range(STARTS):
            await self._spawn(port)
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    while not self.port_file.exists() and self.process.returncode is None:
                        await asyncio.sleep(0.05)
            except TimeoutError:
                self.process.kill()
                raise EnvError(self._said(f"did not start within {START_TIMEOUT_S} s")) from None
            if self.port_file.exists():
                self.port = int(self.port_file.read_text())
                return f"http://127.0.0.1:{self.port}"
            if self.process.returncode >= 0:
                raise ConfigError(self._said(f"did not start: it ended with code {self.process.returncode}"))
            log.warning("the %s environment server was killed by signal %s while it started", self.cfg.env.name, -self.process.returncode)
        raise EnvError(self._said(f"was killed {STARTS} times while it started"))

    async def _spawn(self, port: int) -> None:
        self.port_file.unlink(missing_ok=True)
        args = ["--host", "127.0.0.1", "--port", str(port), "--port-file", str(self.port_file), "--die-with-parent", str(os.getpid())]
        module = OWN if self.cfg.env.file else SERVERS[self.cfg.env.name]
        if self.cfg.env.file:
            args += [self.cfg.env.file, "--name", self.cfg.env.name]
        elif self.cfg.env.name == "python_tir":
            args += ["--workers", str(self.cfg.env.workers), "--code-timeout", str(self.cfg.env.code_timeout_s)]
            args += ["--stateful"] if self.cfg.env.stateful else []
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *args, stdout=log, stderr=log)

    def _said(self, what: str) -> str:
        return f"The {self.cfg.env.name} environment server {what}. Its log ({self.log}) ends:\n{self.log.read_text(errors='replace')[-600:]}"

    async def keep_alive(self) -> None:
        """Start it again on the same port whenever it dies; the env client retries meanwhile.

        One that does not come up is tried again: the pipeline stops the run when too many groups fail.
        """
        while True:
            await self.process.wait()
            log.warning("the %s environment server ended with code %s; starting it again", self.cfg.env.name, self.process.returncode)
            try:
                await self.start(self.port)
            except TirError as e:
                log.error("%s", e)
                await asyncio.sleep(RESTART_PAUSE_S)

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), 10)
            except TimeoutError:
                self.process.kill()
