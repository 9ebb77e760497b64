"""python -m env_servers.python_tir: serve a Python sandbox over HTTP.

Each call runs in a process of its own inside bubblewrap, forked from a warm interpreter: no network, nothing of the host but a read-only Python with this
environment's packages, limits on time, memory, processes and output. At start a snippet is run to prove it; a server that cannot
isolate refuses to start.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import sys

from env_servers.launch import TOKEN_ENV, add_serving_flags, serve, serving_config
from env_servers.processes import run_copies
from env_servers.serving import create_env_app

from .bare import BareSandbox
from .bwrap import BwrapSandbox
from .env import PythonEnv
from .fusion_backend import FusionSandbox
from .limits import Limits
from .run_code import add_run_code
from .sandbox import Sandbox, SandboxError
from .seccomp import filter_program
from .selftest import proved
from .warm.sandbox import WarmSandbox

BACKEND_TOKEN_ENV = "TIR_BACKEND_TOKEN"
EXAMPLE = f"""
example:
  python -m env_servers.python_tir --port 8100 --workers 4 &
  curl -s localhost:8100/reset -H 'content-type: application/json' -d '{{"session_id": "me"}}'
  curl -s localhost:8100/step  -H 'content-type: application/json' \\
       -d '{{"session_id": "me", "step_id": 0, "action": "print(2**10)", "deadline_s": 20}}'
  -> {{"observation": "1024\\n", "outcome": "ok", "signals": {{"executed": true, "error_type": null, ...}}, ...}}

POST /run_code is SandboxFusion's API. GET /health tells the isolation level and load, /schema what an action is, /metrics counts outcomes (Prometheus).
--backend-url runs the code on a SandboxFusion server instead; ${BACKEND_TOKEN_ENV} is sent to it as bearer token.
With ${TOKEN_ENV} set, requests need 'Authorization: Bearer <token>'. SIGTERM drains, then stops.
"""

NO_ISOLATION = """WARNING: --isolation none: model-written code runs with the rights of this server.
WARNING: it can read and change its files, use the network and leave processes behind."""
NO_SECCOMP = "WARNING: libseccomp is missing (`apt-get install libseccomp2`): snippets keep system calls that namespaces do not stop."
NO_WARM = "WARNING: no warm workers, each call starts an interpreter of its own (10 to 300 ms slower): {reason}"


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
    warm = "fork each call from a warm interpreter; --no-warm starts a fresh one, some 10 to 300 ms slower (default: warm)"
    p.add_argument("--warm", action=argparse.BooleanOptionalAction, default=True, help=warm)
    backend = "run the code on this SandboxFusion server (base URL): it isolates, --isolation does not apply"
    p.add_argument("--backend-url", metavar="URL", help=backend)
    return p


def remote_sandbox(url: str, limits: Limits) -> Sandbox:
    """A SandboxFusion server that has run a snippet. Raises SandboxError with a remedy."""

    async def try_it() -> None:
        probe = FusionSandbox(url, limits, token=token)
        try:
            result = await probe.run("print(6 * 7)")
        finally:
            await probe.close()
        if result.stdout != b"42\n":
            raise SandboxError(f"{url}/run_code does not run Python: print(6 * 7) gave {result.stdout[:100]!r}. Point --backend-url at a SandboxFusion server.")

    token = os.environ.get(BACKEND_TOKEN_ENV) or None
    asyncio.run(try_it())
    return FusionSandbox(url, limits, token=token)


def make_sandbox(isolation: str, limits: Limits, *, warm: bool = True, workers: int = 2) -> Sandbox:
    """A sandbox that has proved itself. Warm workers that do not come up give way to a fresh process per call. Raises SandboxError with a remedy."""
    if isolation == "none":
        print(NO_ISOLATION, file=sys.stderr)
        return BareSandbox(limits)
    seccomp = filter_program()
    if seccomp is None:
        print(NO_SECCOMP, file=sys.stderr)
    if warm:
        try:
            return asyncio.run(proved(WarmSandbox(limits, slots=workers, seccomp=seccomp)))
        except SandboxError as e:
            reason = e
    sandbox = asyncio.run(proved(BwrapSandbox(limits, seccomp=seccomp)))
    if warm:  # said only now: without any isolation the message of the fresh sandbox is the one that helps
        print(NO_WARM.format(reason=reason), file=sys.stderr)
    return sandbox


def main() -> None:
    args = parser().parse_args()
    run_copies(args)
    limits = dataclasses.replace(Limits(), code_timeout_s=args.code_timeout, memory_bytes=args.memory_mib << 20)
    try:
        sandbox = remote_sandbox(args.backend_url, limits) if args.backend_url else make_sandbox(args.isolation, limits, warm=args.warm, workers=args.workers)
    except SandboxError as e:
        sys.exit(f"python_tir does not start: {e}")
    action = "Python source code, run as a script; print what you want to see"
    config = serving_config(args, env="python_tir", action=action, isolation=sandbox.isolation)
    app = create_env_app(lambda: PythonEnv(sandbox), config, on_stop=sandbox.close)
    add_run_code(app, sandbox)
    serve(app, args)


if __name__ == "__main__":
    main()
