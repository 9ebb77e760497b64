"""python -m env_servers.python_tir: serve a Python sandbox over HTTP.

Each call runs in a fresh process inside bubblewrap: no network, nothing of the host but a read-only Python with this
environment's packages, limits on time, memory, processes and output. At start a snippet is run to prove it; a server that cannot
isolate refuses to start.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys

from env_servers.launch import TOKEN_ENV, add_serving_flags, serve, serving_config
from env_servers.serving import create_env_app

from .bare import BareSandbox
from .bwrap import BwrapSandbox
from .env import PythonEnv
from .limits import Limits
from .sandbox import Sandbox, SandboxError
from .seccomp import filter_program
from .selftest import self_test

EXAMPLE = f"""
example:
  python -m env_servers.python_tir --port 8100 --workers 4 &
  curl -s localhost:8100/reset -H 'content-type: application/json' -d '{{"session_id": "me"}}'
  curl -s localhost:8100/step  -H 'content-type: application/json' \\
       -d '{{"session_id": "me", "step_id": 0, "action": "print(2**10)", "deadline_s": 20}}'
  -> {{"observation": "1024\\n", "outcome": "ok", "signals": {{"executed": true, "error_type": null, ...}}, ...}}

GET /health tells the isolation level and load, /schema what an action is, /metrics counts outcomes (Prometheus).
With ${TOKEN_ENV} set, requests need 'Authorization: Bearer <token>'. SIGTERM drains, then stops.
"""

NO_ISOLATION = """WARNING: --isolation none: model-written code runs with the rights of this server.
WARNING: it can read and change its files, use the network and leave processes behind."""
NO_SECCOMP = "WARNING: libseccomp is missing (`apt-get install libseccomp2`): snippets keep system calls that namespaces do not stop."


def parser() -> argparse.ArgumentParser:
    limits = Limits()
    raw = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(prog="python -m env_servers.python_tir", description=__doc__, epilog=EXAMPLE, formatter_class=raw)
    add_serving_flags(p, workers=2)
    seconds = "wall clock of one snippet; beyond it the model reads TimeLimitExceeded (default: %(default)s)"
    p.add_argument("--code-timeout", type=float, default=limits.code_timeout_s, metavar="S", help=seconds)
    memory = "memory of one snippet with all its processes (default: %(default)s)"
    p.add_argument("--memory-mib", type=int, default=limits.memory_bytes >> 20, metavar="N", help=memory)
    isolation = "none runs code with the rights of this server: only on a machine that may be harmed (default: %(default)s)"
    p.add_argument("--isolation", choices=["bwrap", "none"], default="bwrap", help=isolation)
    return p


def make_sandbox(isolation: str, limits: Limits) -> Sandbox:
    """A sandbox that has proved itself. Raises SandboxError with a remedy."""
    if isolation == "none":
        print(NO_ISOLATION, file=sys.stderr)
        return BareSandbox(limits)
    seccomp = filter_program()
    if seccomp is None:
        print(NO_SECCOMP, file=sys.stderr)
    sandbox = BwrapSandbox(limits, seccomp=seccomp)
    asyncio.run(self_test(sandbox))
    return sandbox


def main() -> None:
    args = parser().parse_args()
    limits = dataclasses.replace(Limits(), code_timeout_s=args.code_timeout, memory_bytes=args.memory_mib << 20)
    try:
        sandbox = make_sandbox(args.isolation, limits)
    except SandboxError as e:
        sys.exit(f"python_tir does not start: {e}")
    action = "Python source code, run as a script; print what you want to see"
    config = serving_config(args, env="python_tir", action=action, isolation=sandbox.isolation)
    serve(create_env_app(lambda: PythonEnv(sandbox), config, on_stop=sandbox.close), args)


if __name__ == "__main__":
    main()
