"""python -m env_servers.echo: an environment in one class. Copy this file to write another."""

from __future__ import annotations

import argparse
import asyncio

from env_servers.env import Env, Step
from env_servers.flags import command_parser
from env_servers.launch import add_serving_flags, serve_env
from env_servers.processes import run_copies


class EchoEnv(Env):
    """Returns the action. `task["greeting"]` is the first observation, `task["delay_s"]` makes steps slow, the action
    "fail" raises."""

    async def reset(self, task: dict, seed: int) -> str:
        self._delay_s = float(task.get("delay_s", 0.0))
        if not 0 <= self._delay_s <= 3600:
            raise ValueError(f'task["delay_s"] is {self._delay_s}. Send 0 to 3600 seconds.')
        return str(task.get("greeting", ""))

    async def step(self, action: str, deadline_s: float) -> Step:
        await asyncio.sleep(self._delay_s)
        if action == "fail":
            raise RuntimeError("asked to fail")
        return Step(observation=action, signals={"length": len(action)})


def parser() -> argparse.ArgumentParser:
    p = command_parser("env_servers.echo", __doc__)
    add_serving_flags(p, workers=8)
    return p


def main() -> None:
    args = parser().parse_args()
    run_copies(args)
    serve_env(EchoEnv, args, env="echo", action="any text; it comes back")


if __name__ == "__main__":
    main()
