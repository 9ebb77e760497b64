"""Flags for a recipe whose learner and engines take turns on the same GPUs, a mode that has never run on a GPU."""

from __future__ import annotations

from typing import Any

from ..problems import Problems
from ..settings import attempt
from .recipe_draft import Draft

FILES_OF_THE_USER = ("reward.name", "reward.weights", "env.file")
"""Settings that may name files which the import has yet to write."""
KV_CACHE_MIB = 16384
"""vllm.kv_cache_mib of an engine beside a learner rank, on a card of 80 GiB."""


def say_turns(draft: Draft, gpus_of_an_engine: int = 1) -> None:
    """Say that train.colocate_all has never run on a GPU, and the flags that keep the recipe's rules without it.

    Args:
        draft: The recipe. Nothing is said if it does not have the mode.
        gpus_of_an_engine: GPUs that an engine had in the imported command.
    """
    if not draft.settings.get("train.colocate_all"):
        return
    apart = engines_apart(draft, gpus_of_an_engine)
    beside = {"train.colocate_all": False, "train.share_gpus": True, "vllm.kv_cache_mib": KV_CACHE_MIB}
    ways = [f"With GPUs of their own: {_flags(apart)}."] if apart else []
    if _keeps_the_rules(draft, beside):
        ways.append(f"Both in the memory of each GPU, sized for 80 GiB (openrlhf-tir size): {_flags(beside)}.")
    draft.differs(
        " ".join(["train.colocate_all has never run on a GPU here, and needs nvcc of CUDA 13 and g++.", *ways])
    )


def engines_apart(draft: Draft, gpus_of_an_engine: int) -> dict[str, Any]:
    """Return settings that give about half of each node's GPUs to the learner and the others to engines; none if that
    breaks a rule."""
    nodes = draft.settings["actor.num_nodes"]
    gpus = draft.settings["actor.num_gpus_per_node"]
    for ranks in range(gpus // 2, 0, -1):
        size = gpus_of_an_engine
        while size > gpus - ranks:
            size //= 2
        settings = {
            "train.colocate_all": False,
            "actor.num_gpus_per_node": ranks,
            "vllm.num_engines": nodes * ((gpus - ranks) // size),
            "vllm.tensor_parallel_size": size,
        }
        if size == 1:
            settings.pop("vllm.tensor_parallel_size")
        if _keeps_the_rules(draft, settings):
            return settings
    return {}


def _keeps_the_rules(draft: Draft, settings: dict[str, Any]) -> bool:
    """Return True if the recipe breaks no more rules with some other settings."""
    return not {*_problems(draft.settings | settings)} - {*_problems(draft.settings)}


def _problems(settings: dict[str, Any]) -> list[str]:
    problems = Problems()
    attempt(None, {name: value for name, value in settings.items() if name not in FILES_OF_THE_USER}, problems)
    return problems.lines


def _flags(settings: dict[str, Any]) -> str:
    return " ".join(f"--{name} {str(value).lower()}" for name, value in settings.items())
