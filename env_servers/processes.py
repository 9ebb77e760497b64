"""Run several copies of a server behind one port (`--processes N`). A session lives in one copy; /reset names it.

    parent: binds the front port and one port per copy, starts the copies with these sockets, waits until all answer
    copy:   accepts on both. An idle copy takes a new connection of the front port; /reset replies with the copy's own
            URL, to which the steps of the session then go (EnvClient does so). A step sent to the front port reaches
            any copy, usually one without that session: 404.

When one copy ends, the parent stops the others and exits with code 1, so that whatever started it starts it again and
no session is half lost. SIGTERM goes to every copy, which drains as a single server does. `--workers`, `--max-queue`
and `--max-sessions` count per copy.
"""

from __future__ import annotations

import argparse
import http.client
import ipaddress
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

from . import launch

START_TIMEOUT_S = 600.0
"""Seconds within which a copy must answer. One that ends is noticed at once. Imports take minutes on a starved host."""


def run_copies(args: argparse.Namespace) -> None:
    """Run the copies and exit, if `--processes` is above 1. Call it before the server acquires anything."""
    if args.processes > 1:
        if args.die_with_parent:
            launch.die_with_parent(args.die_with_parent)
        sys.exit(_run(args))


def _run(args: argparse.Namespace) -> int:
    """Start the copies and wait until one ends. Return the exit code."""
    _refuse_wildcard(args.host)
    signal.signal(signal.SIGTERM, _interrupt)
    front = launch.bind(args.host, args.port)
    front.listen(2048)  # connections that arrive before a copy is up wait in this backlog
    copies: list[subprocess.Popen] = []
    try:
        urls = [_start(args, front, copies) for _ in range(args.processes)]
        port = front.getsockname()[1]
        front.close()  # now only the copies hold the ports, so no port outlives them
        for url in urls:
            _wait_until_up(url)
        print(
            f"{args.processes} processes serve at {launch.base_url(args.host, port)}: {', '.join(urls)}",
            file=sys.stderr,
            flush=True,
        )
        if args.port_file is not None:
            launch.write_port(args.port_file, port)
        pid, status = os.wait()
        print(
            f"The server process {pid} ended with {os.waitstatus_to_exitcode(status)}; stopping the others.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _stop(copies, args.drain)


def _start(args: argparse.Namespace, front: socket.socket, copies: list[subprocess.Popen]) -> str:
    """Start one copy and return its URL. Its port listens before it is up: waiting for it is then one blocking
    request."""
    copy_socket = launch.bind(args.host, 0)
    copy_socket.listen(2048)
    url = launch.base_url(args.host, copy_socket.getsockname()[1])
    fds = (front.fileno(), copy_socket.fileno())
    spec = sys.modules["__main__"].__spec__
    program = [sys.argv[0]] if spec is None else ["-m", spec.name.removesuffix(".__main__")]
    # Appended, because later flags win over the user's.
    copy_flags = [
        "--processes", "1", "--listen-fds", ",".join(map(str, fds)), "--server-url", url,
        "--die-with-parent", str(os.getpid()),
    ]  # fmt: skip
    with copy_socket:
        copies.append(subprocess.Popen([sys.executable, *program, *sys.argv[1:], *copy_flags], pass_fds=fds))
    return url


def _wait_until_up(url: str) -> None:
    """Wait until the server at `url` answers. Exits if its process ends, which closes its port, or does not answer in
    time.
    """
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=START_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        connection.getresponse().read()
    except (OSError, http.client.HTTPException) as e:
        sys.exit(f"The server process for {url} did not start ({type(e).__name__}); its message is above.")
    finally:
        connection.close()


def _stop(copies: list[subprocess.Popen], drain_s: float) -> None:
    """Terminate all copies, and kill those that do not end within the drain time and 5 seconds."""
    for copy in copies:
        with suppress(ProcessLookupError):
            copy.terminate()
    for copy in copies:
        try:
            copy.wait(drain_s + 5)
        except subprocess.TimeoutExpired:
            copy.kill()
            copy.wait()


def _interrupt(number: int, frame: object) -> None:
    """Handle SIGTERM as Ctrl-C, so that the `finally` of `_run` stops the copies."""
    raise KeyboardInterrupt


def _refuse_wildcard(host: str) -> None:
    """Exit if the host is a wildcard address: /reset must name an address that clients can reach."""
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            sys.exit(
                f"--host {host} with --processes: clients are told the address of the process that holds their session."
                " Give the node's own address."
            )
