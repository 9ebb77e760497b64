"""The environment servers that a run starts itself: one for each environment without a URL.

A server that dies is started again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from ..config import Config
from ..config.environments import Environment
from ..config.secrets import ROLLOUT_TOKEN
from ..config.servers import SERVERS
from ..errors import ConfigError, EnvError, TirError, unknown
from ..waiting.background import background
from ..waiting.backoff import backoff_s
from .lost import end_of, watched

OURS = ("host", "port", "port-file", "die-with-parent", "processes", "listen-fds", "workers", "name", "reset-timeout")
"""Flags of a server that the run sets itself, or for which it has a setting."""
RESET_SHARE = 0.9
"""Share of a reset's deadline after which that of a user's class is given up: its caller still waits, and learns where
the class is."""
START_TIMEOUT_S = 300.0
"""Deadline of a server's start in seconds. Its imports take seconds, and minutes on a starved host."""
STARTS = 3
"""How often a server that is killed while it starts is started, the first time included."""
log = logging.getLogger(__name__)


@asynccontextmanager
async def begun_servers(cfg: Config) -> AsyncIterator[dict[str, EnvServerProcess]]:
    """Start the processes of all environment servers of the run without waiting for them; end them at the end.

    They import and open their ports while the caller does something else. Pass them to `env_urls`.

    Raises:
        ConfigError: There is no server of an environment's name.
    """
    servers = {name: EnvServerProcess(cfg, e) for name, e in served_environments(cfg).items() if not e.urls}
    try:
        for server in servers.values():
            await server.begin()
        yield servers
    finally:
        await asyncio.gather(*(server.stop() for server in servers.values()))


@asynccontextmanager
async def env_urls(
    cfg: Config, begun: Mapping[str, EnvServerProcess] | None = None
) -> AsyncIterator[dict[str, list[str]]]:
    """Yield the base URLs of each environment: those of its section, or that of a server on loopback that is running.

    Args:
        cfg: The run's configuration.
        begun: The servers of `begun_servers`, which ends them; None: they are started and ended here.

    Raises:
        ConfigError: A server cannot be started with these settings.
        EnvError: A server was killed, or hangs.
    """
    if begun is None:
        async with begun_servers(cfg) as servers, env_urls(cfg, servers) as urls:
            yield urls
        return
    urls = {name: e.urls for name, e in served_environments(cfg).items()}
    async with AsyncExitStack() as kept:
        for name, server in begun.items():
            urls[name] = [await server.start(port=0, wait_s=cfg.train.start_wait_s)]
            await kept.enter_async_context(background(f"env server {name}", server.keep_alive))
        yield urls


def served_environments(cfg: Config) -> dict[str, Environment]:
    """Return the environments that have servers: none with an agent file, which is the environment itself."""
    return {} if cfg.train.agent_func_path else cfg.environments


def server_module(e: Environment) -> str:
    """Return the module of the server that the run starts for an environment.

    Raises:
        ConfigError: There is none.
    """
    if not e.server_info.module:
        raise unknown(
            "env", e.serves, SERVERS, _REMEDY.format(s=e.section, name="name" if e.section == "env" else "server")
        )
    return e.server_info.module


_REMEDY = "Set {s}.{name} to one of them, point {s}.url at a running server, or give {s}.file, a class of your own."


LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts that only the own node reaches."""


def url_remedy(sections: Sequence[str]) -> str:
    """Return what to do where a server on loopback is not reached by all engines.

    Args:
        sections: Sections of the environments whose server the run would start.
    """
    urls = ", ".join(f"{section}.url" for section in sections)
    return f"Start servers with train_scripts/start_env_servers.sh and set {urls} to what it prints."


def server_flags(e: Environment) -> list[str]:
    """Return the flags of an environment's server, except where it listens.

    The options of a user's class are keywords of its constructor, of any type.

    Raises:
        ConfigError: server_options holds a flag that the run sets itself, or no flag.
    """
    flags: list[str] = []
    if e.env.file:
        flags += [
            e.env.file,
            "--name",
            e.serves,
            "--reset-timeout",
            f"{e.env.reset_timeout_s * RESET_SHARE:g}",
            *(["--options", json.dumps(e.env.server_options)] if e.env.server_options else []),
        ]
    if e.server_info.takes_workers:
        flags += ["--workers", str(e.env.workers)]
    if e.server_info.takes_code_timeout:
        flags += ["--code-timeout", str(e.env.code_timeout_s)]
    for key, value in e.env.server_options.items():
        flag = key.replace("_", "-")
        if flag in OURS or not (e.env.file or re.fullmatch(r"[a-z][a-z0-9-]*", flag)):
            raise ConfigError(
                f"{e.section}.server_options has {key!r}, which the run sets itself or no server has. Leave it out."
            )
        if e.env.file:
            continue  # They are keywords of the class, passed as --options above.
        match value:
            case bool():
                flags.append(f"--{flag}" if value else f"--no-{flag}")
            case int() | float() | str():
                flags += [f"--{flag}", str(value)]
            case _:
                raise ConfigError(
                    f"{e.section}.server_options.{key} = {value!r} cannot be the value of a flag."
                    " Write text, a number or a boolean."
                )
    return flags


def log_file(cfg: Config, e: Environment) -> Path:
    """Return the log of an environment's server."""
    return Path(cfg.run_dir) / f"{f'env_server_{e.name}' if cfg.envs else 'env_server'}.log"


CRASH = "Fatal Python error:"
"""What faulthandler writes before the stacks of a process that crashes in a library."""


def crash_place(log_text: str, file: str | None) -> str | None:
    """Return "file:line" of the user's innermost line in the last crash that a server's log tells of.

    Args:
        log_text: The log.
        file: env.file, "path/file.py:Class"; None for a server of this package.

    Returns:
        None if there was no crash, or none with a line of that file.
    """
    path = re.sub(r":\w+$", "", file or "")
    crash = log_text.rpartition(CRASH)[2] if path.endswith(".py") and CRASH in log_text else ""
    # The threads follow each other, with an empty line between them, and not the crashed one first.
    stack = (crash.partition("Current thread")[2] or crash).partition("\n\n")[0]
    found = re.search(rf'File "{re.escape(path)}", line (\d+)', stack)
    return f"{path}:{found[1]}" if found else None


class EnvServerProcess:
    """One server process, started again when it dies."""

    def __init__(self, cfg: Config, e: Environment) -> None:
        self.cfg = cfg
        self.env = e
        self.port = 0
        self.process: asyncio.subprocess.Process | None = None
        """The process; None before it is started, and when it was seen to have ended."""
        self._log_begins = 0
        """Where the log of the present process begins in the log of all."""
        self.log = log_file(cfg, e)
        self._name = self.log.stem.replace("_", "-", 2)
        self.port_file = self.log.with_suffix(".port")

    async def begin(self) -> None:
        """Start the process on a free port, for `start` to wait for.

        If this machine has no room for it (a failed fork), `start` tries again.
        """
        try:
            await self._spawn(port=0)
        except OSError as error:
            log.warning("the %s environment server does not start yet: %s", self.env.name, error)

    async def start(self, port: int, wait_s: float) -> str:
        """Start the server and return its URL once it listens.

        Args:
            port: Its port; 0 for a free one.
            wait_s: Seconds for which a start that fails is tried again, after growing pauses. What ends the server now,
                or keeps this machine from starting it (a failed fork), need not stay.

        Raises:
            ConfigError: It ended by itself. The message has the end of its log.
            EnvError: It was killed, or hangs.
            OSError: This machine cannot start a process.
        """
        clock = asyncio.get_running_loop().time
        give_up = clock() + wait_s
        failures = 0
        while True:
            try:
                return await self._start_once(port)
            except (TirError, OSError) as error:
                if clock() >= give_up:
                    raise
                pause_s = backoff_s(failures)
                name = self.env.name
                log.error("the %s environment server does not start (%s); next try in %g s", name, error, pause_s)
                await asyncio.sleep(pause_s)
                failures += 1

    async def _start_once(self, port: int) -> str:
        """Do what `start` does, without trying again. One that is killed is started STARTS times.

        Raises:
            ConfigError: It ended by itself. The message has the end of its log.
            EnvError: It was killed, or hangs.
        """
        patience_s = self.cfg.timeouts.start_s if self.env.server_info.builds_index else START_TIMEOUT_S
        for _ in range(STARTS):
            process = self.process or await self._spawn(port)
            try:
                async with asyncio.timeout(patience_s):
                    while not self.port_file.exists() and process.returncode is None:
                        await asyncio.sleep(0.05)
            except TimeoutError:
                kill_all(process)
                self.process = None
                raise EnvError(self._with_log(f"did not start within {patience_s:g} s")) from None
            if self.port_file.exists():
                self.port = int(self.port_file.read_text())
                return f"http://127.0.0.1:{self.port}"
            self.process = None
            kill_all(process)
            if (code := process.returncode) is None or code >= 0:
                raise ConfigError(self._with_log(f"did not start: it ended with code {code}"))
            why = f"the {self.env.name} environment server was killed by signal {-code} while it started"
            log.warning("%s", await end_of(self.cfg, self._name, why))
        raise EnvError(self._with_log(f"was killed {STARTS} times while it started"))

    async def _spawn(self, port: int) -> asyncio.subprocess.Process:
        self.port_file.unlink(missing_ok=True)
        args = [
            "--host", "127.0.0.1", "--port", str(port), "--port-file", str(self.port_file),
            "--die-with-parent", str(os.getpid()),
        ]  # fmt: skip
        args += server_flags(self.env)
        with self.log.open("ab") as log:
            self._log_begins = log.tell()
            command = (sys.executable, "-m", server_module(self.env), *args)
            # In its own session it does not get signals to our process group (timeout, Slurm, Ctrl-C): the run winds
            # down first, and ends its servers when it is done.
            self.process = process = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, env=self._environ(), start_new_session=True
            )
        await asyncio.to_thread(watched, self.cfg, self._name, process.pid, descendants=False)
        return process

    def _environ(self) -> dict[str, str]:
        """Return our environment variables without secrets that a process that runs the model's code must not have."""
        secrets = (ROLLOUT_TOKEN, "WANDB_API_KEY")
        return {name: value for name, value in os.environ.items() if name not in secrets}

    def _with_log(self, event: str) -> str:
        return (
            f"The {self.env.name} environment server {event}. Its log ({self.log})"
            f" ends:\n{self.log.read_text(errors='replace')[-600:]}"
        )

    async def keep_alive(self) -> None:
        """Start the server again on the same port whenever it dies. The environment client retries meanwhile.

        One that does not start is tried again without end: the pipeline stops the run when too many groups fail.
        """
        while True:
            if self.process is not None:  # None if what follows failed: `background` calls this method again.
                code = await self.process.wait()
                kill_all(self.process)
                self.process = None
                why = f"the {self.env.name} environment server ended with code {code}"
                if (place := await asyncio.to_thread(self._crash_place)) is not None:
                    why += f", in {place}"
                log.warning("%s; starting it again", await end_of(self.cfg, self._name, why))
            await self.start(self.port, wait_s=math.inf)

    def _crash_place(self) -> str | None:
        """Return the user's line in which the last process crashed; None if it did not, or its log is gone."""
        try:
            with self.log.open("rb") as log:
                log.seek(self._log_begins)
                text = log.read().decode(errors="replace")
        except OSError:
            return None
        return crash_place(text, self.env.env.file)

    async def stop(self) -> None:
        """End the process, and kill it if it does not end within 10 s. Kill what it started and has left."""
        if self.process and self.process.returncode is None:
            self.process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), 10)
            kill_all(self.process)


def kill_all(server: asyncio.subprocess.Process) -> None:
    """Kill a server and what it started. Call it as soon as the server has ended: later its group may be another's.

    A pool of worker processes of a user's class outlives a server that was killed. Forked workers hold its connections,
    whose callers would wait for their whole deadline.
    """
    with suppress(ProcessLookupError):  # nothing is left
        os.killpg(server.pid, signal.SIGKILL)
