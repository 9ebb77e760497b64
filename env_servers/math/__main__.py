"""python -m env_servers.math: serve answer checking, as an environment and by POST /verify.

Equal strings and numbers are decided at once. Everything else goes to math-verify in worker processes, with a CPU
budget for each check: an expression that hangs costs that budget and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys

from env_servers.flags import command_parser
from env_servers.launch import add_serving_flags, serve, serving_config
from env_servers.processes import run_copies
from env_servers.serving import create_env_app
from openrlhf_tir.rewards.workers import Limits, Workers
from openrlhf_tir.waiting.deadlines import Deadline

from .env import MathEnv
from .verifier import Verifier
from .verify import add_verify

EXAMPLE = r"""
example:
  python -m env_servers.math --port 8300 &
  curl -s localhost:8300/verify -H 'content-type: application/json' -d '{"answer": "\\frac{2}{4}", "gold": "0.5"}'
  -> {"equal": true, "how": "exact", "seconds": 0.00001}

--workers processes check at once; a request that needs none of them never waits for expressions that hang.
how: exact (strings and arithmetic), symbolic (math-verify), timeout (the check used up its CPU, so: not equal).
"""


STEPS_PER_WORKER = 16
"""Steps that may run per worker process. Most need no process, and must not wait for those that hang."""


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    p = command_parser("env_servers.math", __doc__, EXAMPLE)
    add_serving_flags(p, workers=2)
    p.add_argument(
        "--verify-timeout",
        type=float,
        default=5.0,
        metavar="S",
        help="CPU seconds of one check; a check that uses them up is not equal (default: %(default)s)",
    )
    p.add_argument(
        "--verify-deadline",
        type=float,
        default=60.0,
        metavar="S",
        help="wall-clock seconds of one check; one that exceeds them with CPU left is a fault, not an answer"
        " (default: %(default)s)",
    )
    return p


def main() -> None:
    """Start the server."""
    args = parser().parse_args()
    if args.verify_timeout <= 0:
        sys.exit(
            f"math does not start: --verify-timeout {args.verify_timeout:g} leaves no time to check. Use more than 0."
        )
    if args.verify_deadline < args.verify_timeout:
        sys.exit(
            f"math does not start: --verify-deadline {args.verify_deadline:g} is less than --verify-timeout"
            f" {args.verify_timeout:g}. Raise it."
        )
    run_copies(args)
    limits = Limits(
        Deadline(args.verify_deadline, "--verify-deadline"), Deadline(args.verify_timeout, "--verify-timeout")
    )
    workers = Workers(args.workers, limits, count_name="--workers")
    asyncio.run(workers.warm())
    verifier = Verifier(workers)

    async def stop() -> None:
        workers.close()

    action = "the final answer in LaTeX or plain text, without \\boxed{}"
    config = dataclasses.replace(
        serving_config(args, env="math", action=action), workers=args.workers * STEPS_PER_WORKER
    )
    app = create_env_app(lambda: MathEnv(verifier), config, on_stop=stop)
    add_verify(app, verifier)
    serve(app, args)


if __name__ == "__main__":
    main()
