"""EnvProcess: the environment server that a run starts for itself when no `env.url` is given. Restarted if it dies."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ..background import FOR_EVER, background
from ..backoff import backoff_s
from ..config import Config
from ..errors import ConfigError, EnvError, TirError, unknown

SERVERS = {"python_tir": "env_servers.python_tir", "echo": "env_servers.echo"}
OWN = "env_servers.own"
"""The server of a class of the user's own, env.file."""
START_TIMEOUT_S = 120
STARTS = 3
"""How often one that is killed while it starts is started again at once, the first included."""
log = logging.getLogger(__name__)


@asynccontextmanager
async def env_urls(cfg: Config) -> AsyncIterator[dict[str, list[str]]]:
    """Environment name -> base URLs. Yields `env.url`'s (comma-separated) if set, else those of a server of our own on loopback."""
    if cfg.train.agent_func_path:  # the file is the environment
        yield {}
        return
    if cfg.env.url:
        yield {cfg.env.name: [u.strip().rstrip("/") for u in cfg.env.url.split(",")]}
        return
    if cfg.env.name not in SERVERS and not cfg.env.file:
        raise unknown("env", cfg.env.name, SERVERS, "Set env.name to one of them, point env.url at a running server, or give env.file.")
    server = _Server(cfg)
    try:
        url = await server.first_start(cfg.train.start_wait_s)
        async with background("env server", server.keep_alive, attempts=FOR_EVER):
            yield {cfg.env.name: [url]}
    finally:
        await server.stop()


class _Server:
    def __init__(self, cfg: Config) -> None:
        self.cfg, self.port = cfg, 0
        self.process: asyncio.subprocess.Process | None = None
        self.port_file = Path(cfg.run_dir) / "env_server.port"
        self.log = Path(cfg.run_dir) / "env_server.log"

    async def first_start(self, wait_s: float) -> str:
        """`start` on a free port. A restart by the launcher tries again for `wait_s`: what ends this server now did not when the run began."""
        clock = asyncio.get_running_loop().time
        give_up, failures = clock() + wait_s, 0
        while True:
            try:
                return await self.start(port=0)
            except (TirError, OSError) as e:
                if clock() >= give_up:
                    raise
                await self._pause(failures, e)
                failures += 1

    async def start(self, port: int) -> str:
        """Returns the URL once the server answers. Raises ConfigError when it ends by itself, EnvError when it is killed or hangs; with the log's end."""
        for _ in range(STARTS):
            await self._spawn(port)
            process = self._up()
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    while not self.port_file.exists() and process.returncode is None:
                        await asyncio.sleep(0.05)
            except TimeoutError:
                process.kill()
                raise EnvError(self._said(f"did not start within {START_TIMEOUT_S} s")) from None
            if self.port_file.exists():
                self.port = int(self.port_file.read_text())
                return f"http://127.0.0.1:{self.port}"
            if (code := process.returncode) is None or code >= 0:
                raise ConfigError(self._said(f"did not start: it ended with code {code}"))
            log.warning("the %s environment server was killed by signal %s while it started", self.cfg.env.name, -code)
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
            command = (sys.executable, "-m", module, *args)
            self.process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, env=self._environ())

    def _up(self) -> asyncio.subprocess.Process:
        assert self.process is not None, "start() comes first"
        return self.process

    def _environ(self) -> dict[str, str]:
        """Ours, without the secrets that are none of a process's business that runs the model's code."""
        return {k: v for k, v in os.environ.items() if k not in (self.cfg.rollout.token_env, "WANDB_API_KEY")}

    def _said(self, what: str) -> str:
        return f"The {self.cfg.env.name} environment server {what}. Its log ({self.log}) ends:\n{self.log.read_text(errors='replace')[-600:]}"

    async def keep_alive(self) -> None:
        """Start it again on the same port whenever it dies; the env client retries meanwhile.

        One that does not come up, or that this machine has no room to start (a failed fork), is tried again with a growing pause: the
        pipeline stops the run when too many groups fail.
        """
        failures = 0
        while True:
            code = await self._up().wait()
            log.warning("the %s environment server ended with code %s; starting it again", self.cfg.env.name, code)
            try:
                await self.start(self.port)
                failures = 0
            except (TirError, OSError) as e:
                await self._pause(failures, e)
                failures += 1

    async def _pause(self, failures: int, error: Exception) -> None:
        pause_s = backoff_s(failures, cap_s=self.cfg.train.max_backoff_s)
        log.error("the %s environment server does not start (%s); next try in %g s", self.cfg.env.name, error, pause_s)
        await asyncio.sleep(pause_s)

    async def stop(self) -> None:
        if self.process and self.process.returncode is None:
            self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), 10)
            except TimeoutError:
                self.process.kill()
