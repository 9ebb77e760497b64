"""EnvProcess: the environment server that a run starts for itself when no `env.url` is given. Restarted if it dies."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ..config import Config
from ..errors import ConfigError, unknown

SERVERS = {"python_tir": "env_servers.python_tir", "echo": "env_servers.echo"}
START_TIMEOUT_S = 60
RESTART_PAUSE_S = 2.0
log = logging.getLogger(__name__)


@asynccontextmanager
async def env_urls(cfg: Config) -> AsyncIterator[dict[str, list[str]]]:
    """Environment name -> base URLs. Yields `env.url`'s (comma-separated) if set, else those of a server of our own on loopback."""
    if cfg.env.url:
        yield {cfg.env.name: [u.strip().rstrip("/") for u in cfg.env.url.split(",")]}
        return
    if cfg.env.name not in SERVERS:
        raise unknown("env", cfg.env.name, SERVERS, "Set env.name to one of them, or point env.url at a running server.")
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
        """Returns the URL once the server answers. Raises ConfigError with the log's end when it does not come up."""
        self.port_file.unlink(missing_ok=True)
        args = ["--host", "127.0.0.1", "--port", str(port), "--port-file", str(self.port_file), "--die-with-parent"]
        if self.cfg.env.name == "python_tir":
            args += ["--workers", str(self.cfg.env.workers), "--code-timeout", str(self.cfg.env.code_timeout_s)]
            args += ["--stateful"] if self.cfg.env.stateful else []
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(sys.executable, "-m", SERVERS[self.cfg.env.name], *args, stdout=log, stderr=log)
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
        while not self.port_file.exists():
            if self.process.returncode is not None or asyncio.get_running_loop().time() > deadline:
                tail = self.log.read_text(errors="replace")[-600:]
                raise ConfigError(f"The {self.cfg.env.name} environment server did not start. Its log ({self.log}) ends:\n{tail}")
            await asyncio.sleep(0.05)
        self.port = int(self.port_file.read_text())
        return f"http://127.0.0.1:{self.port}"

    async def keep_alive(self) -> None:
        """Start it again on the same port whenever it dies; the env client retries meanwhile.

        One that does not come up is tried again: the pipeline stops the run when too many groups fail.
        """
        while True:
            await self.process.wait()
            log.warning("the %s environment server ended with code %s; starting it again", self.cfg.env.name, self.process.returncode)
            try:
                await self.start(self.port)
            except ConfigError as e:
                log.error("%s", e)
                await asyncio.sleep(RESTART_PAUSE_S)

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), 10)
            except TimeoutError:
                self.process.kill()
