"""The command-line flags that every environment server has, and the uvicorn server that runs its app.

The server binds its port, starts, and writes the port file. On SIGTERM it stops accepting connections, lets running
steps finish for `--drain` seconds, closes the sessions and exits.
"""

from __future__ import annotations

import argparse
import ctypes
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from openrlhf_tir.http_guard.connections import ConnectionLimits, uvicorn_options
from openrlhf_tir.http_guard.guard import BodyLimits
from openrlhf_tir.machine.open_files import raise_open_files

from . import logs
from .env import Env
from .flags import MAX_PORT, seconds, whole
from .serving import ServingConfig, create_env_app

TOKEN_ENV = "TIR_ENV_TOKEN"
"""Environment variable with the bearer token."""
PR_SET_PDEATHSIG = 1
"""Option of prctl(2): the signal that this process gets when its parent dies."""


def add_serving_flags(parser: argparse.ArgumentParser, *, workers: int) -> None:
    """Add the flags that every environment server has.

    Args:
        parser: The parser that gets them.
        workers: Default of `--workers`.
    """
    add = parser.add_argument
    add(
        "--host",
        default="127.0.0.1",
        help=f"address to bind; other than loopback needs the bearer token in ${TOKEN_ENV} (default: %(default)s)",
    )
    add("--port", type=whole(0, MAX_PORT), default=0, help="port to bind; 0 takes a free one (default: %(default)s)")
    add("--port-file", type=Path, metavar="PATH", help="write the bound port to PATH once the server answers")
    add(
        "--server-url",
        metavar="URL",
        help="this server's own base URL, which /reset gives to clients; needed only behind a load balancer",
    )
    add(
        "--workers",
        type=whole(1),
        default=workers,
        help="executions at once; about the number of cores (default: %(default)s)",
    )
    add(
        "--processes",
        type=whole(1),
        default=1,
        metavar="N",
        help="copies of this server behind one port; sessions stay in theirs (default: %(default)s)",
    )
    add("--listen-fds", help=argparse.SUPPRESS)  # descriptors of the sockets that `processes` has bound
    add(
        "--max-queue",
        type=whole(0),
        default=256,
        help="executions that may wait for a worker; more get 429 (default: %(default)s)",
    )
    add("--max-sessions", type=whole(1), default=4096, help="open sessions; more get 429 (default: %(default)s)")
    add(
        "--session-ttl",
        type=seconds,
        default=3600.0,
        metavar="S",
        help="close a session unused for S seconds (default: %(default)s)",
    )
    defaults = ConnectionLimits()
    add(
        "--max-connections",
        type=int,
        default=defaults.max_connections,
        metavar="N",
        help="open connections; more get 429 (default: %(default)s)",
    )
    add(
        "--header-timeout",
        type=float,
        default=defaults.header_timeout_s,
        metavar="S",
        help="close a connection that sends no complete request header for S seconds (default: %(default)s)",
    )
    add(
        "--body-timeout",
        type=float,
        default=BodyLimits().body_timeout_s,
        metavar="S",
        help="refuse a body that takes longer (default: %(default)s)",
    )
    add(
        "--drain",
        type=float,
        default=30.0,
        metavar="S",
        help="on SIGTERM let running steps finish for S seconds (default: %(default)s)",
    )
    logs.add_log_flags(parser)
    add(
        "--die-with-parent",
        type=int,
        metavar="PID",
        help="stop when the process PID, which started this server, has ended for any reason (Linux)",
    )


def serving_config(args: argparse.Namespace, *, env: str, action: str, **fields) -> ServingConfig:
    """Return the parsed flags as a ServingConfig. Exits if a limit admits nobody, or if a required token is missing.

    Args:
        args: The flags of `add_serving_flags`.
        env: Name of the environment.
        action: What an action is, in a few words, for `/schema`.
        **fields: Other fields of ServingConfig.
    """
    if args.max_connections < 1 or not args.header_timeout > 0 or not args.body_timeout > 0:
        sys.exit("--max-connections, --header-timeout and --body-timeout must be above 0: no request could get in.")
    return ServingConfig(
        env=env,
        action=action,
        workers=args.workers,
        max_queue=args.max_queue,
        max_sessions=args.max_sessions,
        session_ttl_s=args.session_ttl,
        server_url=args.server_url,
        token=token_for(args.host),
        bodies=BodyLimits(body_timeout_s=args.body_timeout),
        connections=ConnectionLimits(max_connections=args.max_connections, header_timeout_s=args.header_timeout),
        **fields,
    )


def token_for(host: str) -> str | None:
    """Return the bearer token of the environment variable. Exits if others can reach `host` and there is no token."""
    token = os.environ.get(TOKEN_ENV) or None
    if token is None and not _is_loopback(host):
        sys.exit(
            f"--host {host} is reachable from other machines and ${TOKEN_ENV} is not set: anyone could run code here."
            f" Set {TOKEN_ENV}, or bind 127.0.0.1."
        )
    return token


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve_env(
    factory: Callable[[], Env],
    args: argparse.Namespace,
    *,
    on_stop: Callable[[], Awaitable[None]] | None = None,
    **fields: Any,
) -> None:
    """Run an environment's server until SIGTERM or SIGINT.

    Args:
        factory: Returns the environment of a new session.
        args: The flags of `add_serving_flags`.
        on_stop: See `create_env_app`.
        **fields: `env`, `action` and other fields of ServingConfig, as for `serving_config`.
    """
    serve(create_env_app(factory, serving_config(args, **fields), on_stop=on_stop), args)


def serve(app: FastAPI, args: argparse.Namespace) -> None:
    """Run an app until SIGTERM or SIGINT.

    Args:
        app: An app of `create_env_app`.
        args: The flags of `add_serving_flags`.
    """
    if args.processes > 1:
        sys.exit(f"This server has no --processes {args.processes}. Start several, and give their URLs to --env.url.")
    if args.die_with_parent:
        die_with_parent(args.die_with_parent)
    logs.configure(args.log_level, args.log_format)
    raise_open_files()  # one connection a caller and two files a session
    if args.listen_fds:
        sockets = [socket.socket(fileno=int(fd)) for fd in args.listen_fds.split(",")]
    else:
        sockets = [bind(args.host, args.port)]
    _close_in_forks(sockets)
    url = base_url(args.host, sockets[-1].getsockname()[1])
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=max(1, round(args.drain)),
        **uvicorn_options(app.state.connections),
    )
    _Server(app, config, None if args.listen_fds else args.port_file, url).run(sockets=sockets)


def base_url(host: str, port: int) -> str:
    """Return the URL of a server, with brackets around an IPv6 address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def write_port(path: Path, port: int) -> None:
    """Write the port file atomically, so that a waiting process never reads half of a number."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(str(port))
    partial.replace(path)


def _close_in_forks(sockets: list[socket.socket]) -> None:
    """Close the listening sockets in processes that this one forks.

    A worker process of a user's class may outlive a server that was killed. It would keep the port, and accept nothing.
    """

    def close() -> None:
        for sock in sockets:
            with suppress(OSError):
                os.close(sock.detach())

    os.register_at_fork(after_in_child=close)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to send SIGTERM to this process when process `parent` ends.

    Exits at once if the parent has ended already, which may happen while this process imports.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        sys.exit(f"--die-with-parent does not work here: {os.strerror(ctypes.get_errno())}. Leave it out.")
    if os.getppid() != parent:
        sys.exit("The process that started this server is gone.")


def bind(host: str, port: int) -> socket.socket:
    """Return a bound TCP socket. Exits with the remedy if the address cannot be bound."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as e:
        sys.exit(f"Cannot bind {host}:{port}: {e.strerror}. Choose another --port, or 0 for a free one.")
    return sock


class _Server(uvicorn.Server):
    """A uvicorn server that writes the port file when it answers, and refuses new sessions while it drains."""

    def __init__(self, app: FastAPI, config: uvicorn.Config, port_file: Path | None, url: str) -> None:
        super().__init__(config)
        self._app = app
        self._port_file = port_file
        self._url = url

    async def startup(self, sockets=None) -> None:
        """Start to accept connections, then announce the URL."""
        await super().startup(sockets)
        if self.should_exit:
            return
        print(f"{self._app.title} serves at {self._url}", file=sys.stderr, flush=True)
        if self._port_file is not None:
            write_port(self._port_file, int(self._url.rsplit(":", 1)[1]))

    def handle_exit(self, sig, frame) -> None:
        """Handle SIGTERM and SIGINT: no new sessions from now on."""
        self._app.state.service.draining = True
        super().handle_exit(sig, frame)
