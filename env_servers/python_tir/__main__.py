"""python -m env_servers.python_tir: serve a Python sandbox over HTTP.

Each call runs in its own process inside bubblewrap, forked from a warm interpreter: no network, no files of the host
except a read-only Python with the packages of this environment, and limits on time, memory, processes and output. A
snippet proves this at start; a server that cannot isolate refuses to start.

With --stateful (or "stateful": true in a task) the calls of a session share one interpreter, like the cells of a
notebook. A call that is killed at a limit loses that state, and the model is told.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import sys
from collections.abc import Callable

from env_servers.env import Env
from env_servers.flags import call_seconds, command_parser, whole
from env_servers.launch import TOKEN_ENV, add_serving_flags, serve, serving_config
from env_servers.processes import run_copies
from env_servers.serving import create_env_app
from openrlhf_tir.machine import control_group
from openrlhf_tir.protocol import PYTHON_TOOL

from .env import PythonEnv
from .isolation.levels import strongest
from .isolation.selftest import PROBE_S
from .languages import Languages, compiler_directories, find_languages
from .limits import Limits
from .run_code import add_run_code
from .run_jupyter import add_run_jupyter
from .sandbox import Sandbox, SandboxError
from .stateful import StatefulEnv
from .warm.notebooks import NEW_BYTES, Notebooks
from .warm.sandbox import WarmSandbox

BACKEND_TOKEN_ENV = "TIR_BACKEND_TOKEN"
"""Environment variable with the bearer token for --backend-url."""
EXAMPLE = f"""
example:
  python -m env_servers.python_tir --port 8100 --workers 4 &
  curl -s localhost:8100/reset -H 'content-type: application/json' -d '{{"session_id": "me"}}'
  curl -s localhost:8100/step  -H 'content-type: application/json' \\
       -d '{{"session_id": "me", "step_id": 0, "action": "print(2**10)", "deadline_s": 20}}'
  -> {{"observation": "1024\\n", "outcome": "ok", "signals": {{"executed": true, "error_type": null, ...}}, ...}}

POST /run_code and /run_jupyter are SandboxFusion's API. GET /health has the isolation level and the load, /schema what
an action is and which languages /run_code runs, /metrics the outcomes (Prometheus).
--backend-url runs the code on a SandboxFusion server instead; ${BACKEND_TOKEN_ENV} is sent to it as bearer token.
With ${TOKEN_ENV} set, requests need 'Authorization: Bearer <token>'. SIGTERM drains, then stops.
"""


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    limits = Limits()
    p = command_parser("env_servers.python_tir", __doc__, EXAMPLE)
    add_serving_flags(p, workers=2)
    p.add_argument(
        "--code-timeout",
        type=call_seconds,
        default=limits.code_timeout_s,
        metavar="S",
        help="wall-clock seconds of one snippet; beyond it the model reads TimeLimitExceeded (default: %(default)s)",
    )
    p.add_argument(
        "--memory-mib",
        type=int,
        default=limits.memory_bytes >> 20,
        metavar="N",
        help="memory of one snippet with all its processes (default: %(default)s)",
    )
    p.add_argument(
        "--languages",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="serve bash, cpp, go and nodejs at /run_code where they are installed;"
        " --no-languages starts without trying them (default: serve)",
    )
    p.add_argument(
        "--isolation",
        choices=["auto", "bwrap", "landlock", "none"],
        default="auto",
        help="bwrap: namespaces; landlock: weaker, for containers without user namespaces; auto: bwrap, else landlock"
        " with a warning; none runs code with the rights of this server: only on a machine that may be harmed"
        " (default: %(default)s)",
    )
    p.add_argument(
        "--warm",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="fork each call from a warm interpreter; --no-warm starts a fresh one, 10 to 300 ms slower"
        " (default: warm)",
    )
    p.add_argument(
        "--stateful",
        action=argparse.BooleanOptionalAction,
        default=False,
        help='sessions keep their state from call to call unless their task says "stateful": false; needs warm workers'
        " (default: off)",
    )
    p.add_argument(
        "--echo-last",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="in a session with state, show the value of a last line that is an expression",
    )
    p.add_argument(
        "--max-notebooks",
        type=whole(1),
        default=256,
        metavar="N",
        help="interpreters of sessions with state that are kept at once; more get 429 (default: %(default)s)",
    )
    p.add_argument(
        "--notebooks-mib",
        type=whole(NEW_BYTES >> 20),
        default=memory_mib() // 2,
        metavar="N",
        help="memory of all these interpreters together, beyond which no new one starts (default: half of the memory"
        " there is, %(default)s)",
    )
    p.add_argument(
        "--backend-url",
        metavar="URL",
        help="run the code on this SandboxFusion server (base URL): it isolates, --isolation does not apply",
    )
    return p


def remote_sandbox(url: str, limits: Limits) -> Sandbox:
    """Return a sandbox that runs code on a SandboxFusion server, after the server has run a snippet.

    Raises:
        SandboxError: The server does not run Python. The message has a remedy.
    """
    from .fusion_backend import FusionSandbox  # It imports aiohttp, which is a quarter of a server's start.

    token = os.environ.get(BACKEND_TOKEN_ENV) or None

    async def run_snippet() -> None:
        probe = FusionSandbox(url, limits, token=token)
        try:
            result = await probe.run("print(6 * 7)", timeout_s=PROBE_S)
        finally:
            await probe.close()
        if result.stdout != b"42\n":
            raise SandboxError(
                f"{url}/run_code does not run Python: print(6 * 7) gave {result.stdout[:100]!r}."
                " Point --backend-url at a SandboxFusion server."
            )

    asyncio.run(run_snippet())
    return FusionSandbox(url, limits, token=token)


def memory_mib() -> int:
    """Return the MiB of memory that this process may use: the machine's, or the limit of its container."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    of_group = control_group.memory()
    return min(physical, of_group[1] if of_group else physical) >> 20


def env_factory(
    args: argparse.Namespace, sandbox: Sandbox
) -> tuple[Callable[[], Env], dict[str, Callable[[], float]], Notebooks | None]:
    """Return what creates a session's environment, the gauges for /metrics, and the interpreters that keep state.

    Exits if --stateful was asked for and cannot work.
    """
    if isinstance(sandbox, WarmSandbox):
        notebooks = Notebooks(sandbox, cap=args.max_notebooks, memory_bytes=args.notebooks_mib << 20)
        gauges: dict[str, Callable[[], float]] = {
            "notebooks": notebooks.__len__,
            "notebook_bytes": lambda: notebooks.held_bytes,
        }
        return lambda: StatefulEnv(sandbox, notebooks, stateful=args.stateful), gauges, notebooks
    if args.stateful:
        sys.exit(
            "python_tir does not start: --stateful needs warm workers, and they are off or did not come up."
            " Leave it out, or fix the problem reported above."
        )
    return lambda: PythonEnv(sandbox), {}, None


def main() -> None:
    """Start the server."""
    args = parser().parse_args()
    run_copies(args)
    limits = dataclasses.replace(Limits(), code_timeout_s=args.code_timeout, memory_bytes=args.memory_mib << 20)
    try:
        if args.backend_url:
            sandbox = remote_sandbox(args.backend_url, limits)
        else:
            sandbox = strongest(
                args.isolation,
                limits,
                warm=args.warm,
                workers=args.workers,
                echo_last=args.echo_last,
                extra_directories=compiler_directories() if args.languages else [],
            )
    except SandboxError as e:
        sys.exit(f"python_tir does not start: {e}")
    if args.backend_url or not args.languages:
        languages = Languages(sandbox, {})
    else:
        languages = asyncio.run(find_languages(sandbox))
    interpreter = "in the interpreter that the session's earlier calls left" if args.stateful else "run as a script"
    action = f"Python source code, {interpreter}; print what you want to see"
    config = serving_config(
        args,
        env="python_tir",
        action=action,
        isolation=sandbox.isolation,
        stateful=args.stateful,
        code_timeout_s=args.code_timeout,
        tools=[PYTHON_TOOL],
        languages=["python", *languages.names],
    )
    factory, gauges, notebooks = env_factory(args, sandbox)
    app = create_env_app(factory, config, on_stop=sandbox.close, gauges=gauges)
    add_run_code(app, sandbox, languages)
    add_run_jupyter(app, notebooks)
    serve(app, args)


if __name__ == "__main__":
    main()
