"""The `watch` command: serve a live page of a run with progress, what it waits for, curves, timeline and samples."""

from __future__ import annotations

import argparse
import os
import secrets
import time
from pathlib import Path

from ..config.numbers import whole

TOKEN_ENV = "OPENRLHF_TIR_WATCH_TOKEN"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="directory of a run, running or finished")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help=(
            "address to listen on [127.0.0.1]; any address but a loopback one requires a token, which is"
            f" {TOKEN_ENV} or a random one, and is printed"
        ),
    )
    parser.add_argument(
        "--port", type=whole(at_least=0), default=6007, metavar="N", help="port; 0 picks a free one [6007]"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from ..cluster.run_lock import is_held
    from ..observability.live_page import FILES, LivePage, check_is_run

    def has_no_status_yet() -> bool:
        return not any((args.run_dir / name).exists() for name in FILES) and is_held(args.run_dir)

    if has_no_status_yet():
        print(f"{args.run_dir} has just begun: waiting for its first status (Ctrl-C ends it)", flush=True)
    while has_no_status_yet():  # The run first checks and imports, which takes a minute on a busy machine.
        time.sleep(0.2)
    check_is_run(args.run_dir)
    import uvicorn

    from ..http_guard.connections import ConnectionLimits, uvicorn_options
    from ..observability.watch import watch_app
    from ..rollout.serving.app import bound, is_loopback

    token = None
    if not is_loopback(args.host):
        token = os.environ.get(TOKEN_ENV) or secrets.token_urlsafe(24)
    listener = bound(args.host, args.port)
    host = f"[{args.host}]" if ":" in args.host else args.host
    address = f"http://{host}:{listener.getsockname()[1]}/" + (f"?token={token}" if token else "")
    print(f"watching {args.run_dir}: {address}  (Ctrl-C ends it)", flush=True)
    server = uvicorn.Server(
        uvicorn.Config(
            watch_app(LivePage(args.run_dir), token),
            log_level="warning",
            access_log=False,
            lifespan="off",
            **uvicorn_options(ConnectionLimits(max_connections=64)),
        )
    )
    listener.listen(64)
    server.run(sockets=[listener])
    return 0
