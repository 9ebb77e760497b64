"""python -m env_servers.adapters.verifiers ENVIRONMENT RUN_DIR: roll out a verifiers environment for a run.

The run must have --rollout.agent external.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from env_servers import logs
from env_servers.flags import command_parser
from openrlhf_tir.errors import ConfigError

from .agent import START_S, Agent
from .load import add_environment_flags, load
from .rollouts import Rollouts

NAME = "verifiers"
"""The adapter's name, in front of what a start that fails says."""
EXAMPLE = """
example:
  python -m env_servers.adapters.verifiers.make_tasks my_env --out rows.jsonl
  openrlhf-tir train ... --rollout.agent external --data.prompt_dataset rows.jsonl --run_dir runs/vf &
  python -m env_servers.adapters.verifiers my_env runs/vf
"""


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    p = command_parser("env_servers.adapters.verifiers", __doc__, EXAMPLE)
    add_environment_flags(p)
    p.add_argument(
        "run_dir",
        type=Path,
        metavar="RUN_DIR",
        help="directory of the training run; its endpoints/ lists the rollout actors",
    )
    p.add_argument("--workers", type=int, default=64, metavar="N", help="rollouts at once (default: %(default)s)")
    p.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="tokens of one answer (default: as many as the context has room for)",
    )
    p.add_argument(
        "--gone",
        type=float,
        default=600.0,
        metavar="S",
        help="exit when there has been no rollout actor for S seconds; a run that starts again brings them back"
        " (default: %(default)s)",
    )
    p.add_argument(
        "--start",
        type=float,
        default=START_S,
        metavar="S",
        help="seconds in which the run must have its first rollout actor (default: %(default)s)",
    )
    p.add_argument(
        "--rollout-timeout",
        type=float,
        default=3600.0,
        metavar="S",
        help="seconds after which a rollout has failed (default: %(default)s)",
    )
    logs.add_log_flags(p)
    return p


def main() -> None:
    """Roll out tasks until the run is over."""
    args = parser().parse_args()
    try:
        rollouts = Rollouts(load(args), max_tokens=args.max_tokens)
    except ConfigError as e:
        sys.exit(f"{NAME} does not start: {e}")
    logs.configure(args.log_level, args.log_format)
    agent = Agent(
        args.run_dir,
        rollouts.run,
        workers=args.workers,
        gone_s=args.gone,
        rollout_s=args.rollout_timeout,
        start_s=args.start,
    )
    asyncio.run(agent.work())
    if not agent.reached:
        sys.exit(
            f"No rollout actor of {args.run_dir} has answered within {args.start:g} s. Is it the directory of a run"
            " with --rollout.agent external? If the run starts later, raise --start."
        )
    print(
        f"the run is over: {agent.ended['rewarded']} rollouts had a reward, {agent.ended['failed']} failed",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
