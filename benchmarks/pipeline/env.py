"""python -m benchmarks.pipeline.env: an environment server on which a call takes as long as it is told. The emulated
cluster's tools.

    action "0.0031 40"  ->  sleeps 0.0031 s of wall-clock, answers with 40 characters

The server is the real one (sessions, admission, deadlines, HTTP); only the work is emulated. `--workers` is the
workload's env.capacity."""

from __future__ import annotations

import asyncio

from benchmarks.command import command_parser
from env_servers.env import Env, Step
from env_servers.launch import add_serving_flags, serve_env
from env_servers.processes import run_copies


def action_of(seconds: float, tokens: int) -> str:
    """What the emulated model writes between its code tags."""
    return f"{seconds:.6f} {tokens}"


class SleepingEnv(Env):
    async def step(self, action: str, deadline_s: float) -> Step:
        seconds, tokens = action.split()
        await asyncio.sleep(float(seconds))
        return Step(observation="x" * int(tokens))


def main() -> None:
    parser = command_parser(__doc__)
    add_serving_flags(parser, workers=256)
    args = parser.parse_args()
    run_copies(args)
    serve_env(SleepingEnv, args, env="sleeping", action="seconds and tokens")


if __name__ == "__main__":
    main()
