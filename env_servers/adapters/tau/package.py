"""The package tau_bench: its desks, each with policy, tools, tasks and data (arXiv 2406.12045).

It is no package of a registry: `pip install git+https://github.com/sierra-research/tau-bench`, in an environment with
ours. Everything that decides a reward is the package's: tools run on its data, and its `calculate_reward` compares them
with the task's own actions and looks for the task's outputs in what the model said.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

from env_servers.adapters.packages import required

INSTALL = "pip install git+https://github.com/sierra-research/tau-bench"
DOMAINS = {"airline": "MockAirlineDomainEnv", "retail": "MockRetailDomainEnv"}
"""Domain -> the class of its desk."""
SPLITS = {"airline": ("test",), "retail": ("test", "train", "dev")}
RESPOND = "respond"
"""The package's name of the action that speaks to the user."""


class Silent:
    """The user of the package's desk, who is asked nothing: the environment talks to its own user."""

    def reset(self, instruction: str | None = None) -> str:
        return ""

    def step(self, content: str) -> str:
        return ""

    def get_total_cost(self) -> float:
        return 0.0


def check_installed() -> None:
    """Exit with what to install where the package is absent."""
    required("tau_bench", "tau", INSTALL)


def desk(domain: str, split: str, index: int) -> Any:
    """Return the package's desk with fresh data and the task at `index`. It reads files: call it in a thread."""
    required(f"tau_bench.envs.{domain}", "tau", INSTALL)
    module = importlib.import_module(f"tau_bench.envs.{domain}.env")
    made = getattr(module, DOMAINS[domain])(user_strategy="human", task_split=split, task_index=index)
    made.user = Silent()
    return made


async def opened(domain: str, split: str, index: int) -> Any:
    """Return `desk` without blocking the event loop."""
    return await asyncio.to_thread(desk, domain, split, index)


def action(name: str, arguments: dict[str, Any]) -> Any:
    """Return a call as the package's Action."""
    return importlib.import_module("tau_bench.types").Action(name=name, kwargs=arguments)
