"""python -m env_servers.adapters.bfcl: serve BFCL v3's multi-turn tasks on the package's own classes.

env_servers.adapters.bfcl.make_tasks writes rows.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from env_servers.flags import command_parser
from env_servers.launch import add_serving_flags, serve_env
from env_servers.processes import run_copies
from openrlhf_tir.errors import DataError
from openrlhf_tir.rewards.workers import Limits, Workers
from openrlhf_tir.waiting.deadlines import Deadline

from .env import ACTION, BfclEnv
from .package import functions
from .play import load

EXAMPLE = """
example:
  python -m env_servers.adapters.bfcl --port 8600 &
  curl -s localhost:8600/reset -H 'content-type: application/json' -d '{"session_id": "s1", "task":
      {"id": "mine_0", "functions_told": true, "involved_classes": ["GorillaFileSystem"], "initial_config": {},
       "label": [["touch(file_name='"'"'a.txt'"'"')"]]}}'
  curl -s localhost:8600/step -H 'content-type: application/json' -d '{"session_id": "s1", "step_id": 0,
      "deadline_s": 5, "action": "[{\\"name\\": \\"touch\\", \\"arguments\\": {\\"file_name\\": \\"a.txt\\"}}]"}'
  -> {"observation": "None", "signals": {"state_match": 2, "state_total": 2, "functions_matched": 1, ...}, ...}
"""


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    p = command_parser("env_servers.adapters.bfcl", __doc__, EXAMPLE)
    add_serving_flags(p, workers=2)
    p.add_argument(
        "--step-cpu",
        type=float,
        default=5.0,
        metavar="S",
        help="CPU seconds of a step, including the replay of all earlier calls; a call that uses them up has failed"
        " (default: %(default)s)",
    )
    p.add_argument(
        "--step-deadline",
        type=float,
        default=60.0,
        metavar="S",
        help="wall-clock seconds of a step; one that exceeds them with CPU left is a fault of the machine"
        " (default: %(default)s)",
    )
    return p


async def _warm(workers: Workers) -> None:
    """Make every worker ready, so that the first sessions do not wait for imports."""
    await asyncio.gather(*(workers.run(load) for _ in range(workers.count)))


def main() -> None:
    """Start the server."""
    args = parser().parse_args()
    try:
        schemas = functions()
    except DataError as e:
        sys.exit(f"bfcl does not start: {e}")
    if not 0 < args.step_cpu <= args.step_deadline:
        sys.exit(
            f"bfcl does not start: --step-cpu {args.step_cpu:g} is not between 0 and --step-deadline"
            f" {args.step_deadline:g}."
        )
    run_copies(args)
    limits = Limits(Deadline(args.step_deadline, "--step-deadline"), Deadline(args.step_cpu, "--step-cpu"))
    workers = Workers(args.workers, limits, count_name="--workers")
    workers.prepare = load
    asyncio.run(_warm(workers))

    async def stop() -> None:
        workers.close()

    serve_env(lambda: BfclEnv(workers, schemas), args, env="bfcl", action=ACTION, stateful=True, on_stop=stop)


if __name__ == "__main__":
    main()
