"""The package tau_bench: its desks, each with policy, tools, tasks and data (arXiv 2406.12045).

It is in no registry: `pip install git+https://github.com/sierra-research/tau-bench`, in an environment together with
this project. The package decides the reward: tools run on its data, and its `calculate_reward` compares them with the
task's own actions and looks for the task's outputs in what the model said.
"""

from __future__ import annotations

import importlib
from typing import Any

from env_servers.adapters.packages import required

INSTALL = "pip install git+https://github.com/sierra-research/tau-bench"
DOMAINS = {"airline": "MockAirlineDomainEnv", "retail": "MockRetailDomainEnv"}
"""Class of the desk of each domain."""
SPLITS = {"airline": ("test",), "retail": ("test", "train", "dev")}
"""Splits of each domain."""
RESPOND = "respond"
"""The package's name of the action that speaks to the user."""


class Silent:
    """A user for the package's desk that is never asked: the environment talks to its own user."""

    def reset(self, instruction: str | None = None) -> str:
        return ""

    def step(self, content: str) -> str:
        return ""

    def get_total_cost(self) -> float:
        return 0.0


def check_installed() -> None:
    """Exit with what to install if the package is missing."""
    required("tau_bench", "tau", INSTALL)


def desk(domain: str, split: str, index: int) -> Any:
    """Return the package's desk with fresh data and the task at `index`. It reads files: call it in a thread."""
    required(f"tau_bench.envs.{domain}", "tau", INSTALL)
    module = importlib.import_module(f"tau_bench.envs.{domain}.env")
    new_desk = getattr(module, DOMAINS[domain])(user_strategy="human", task_split=split, task_index=index)
    new_desk.user = Silent()
    return new_desk


def action(name: str, arguments: dict[str, Any]) -> Any:
    """Return a call as the package's Action."""
    return importlib.import_module("tau_bench.types").Action(name=name, kwargs=arguments)
