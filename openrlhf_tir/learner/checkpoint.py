"""Checkpoint of one learner rank: DeepSpeed's model and optimiser shards, the RNG states, and the version. Resume is bit-exact.

DeepSpeed does not store RNG states. The learning rate is a function of the version (schedule.py), so there is no scheduler state.
Layout of the directory: zero/ (DeepSpeed's files), rank<r>.pt (RNG), learner.json (version, world size).
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import deepspeed
import numpy as np
import torch

from ..errors import ConfigError
from .background import write_text

TAG = "zero"


class RngState(TypedDict):
    python: tuple[Any, ...]
    numpy: tuple[Any, ...]
    torch: torch.Tensor
    cuda: NotRequired[torch.Tensor]


def rng_state() -> RngState:
    """Everything a training step could draw from, as tensors, numbers and text: `torch.load` reads it without running any code."""
    of_numpy = np.random.get_state()
    assert isinstance(of_numpy, tuple), "its legacy form"
    name, keys, *rest = of_numpy
    numpy_state = (name, torch.from_numpy(keys.astype(np.int64)), *rest)
    state: RngState = {"python": random.getstate(), "numpy": numpy_state, "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: RngState) -> None:
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def save_rank(engine: deepspeed.DeepSpeedEngine, directory: Path, *, rank: int, world_size: int, version: int) -> None:
    """Collective. `directory` must be the same on all ranks; making it appear atomically is the caller's business.

    With a BackgroundWriter as engine.checkpoint_engine the files are complete when its `written` returns.
    """
    directory.mkdir(parents=True, exist_ok=True)
    engine.checkpoint_engine.begin()
    engine.save_checkpoint(str(directory), tag=TAG, save_latest=False)
    engine.checkpoint_engine.save(rng_state(), directory / f"rank{rank}.pt")
    if rank == 0:
        write_text(directory / "learner.json", json.dumps({"version": version, "world_size": world_size}))


def load_rank(engine: deepspeed.DeepSpeedEngine, directory: Path, *, rank: int, world_size: int) -> int:
    """Collective. Returns the version. Raises ConfigError when the checkpoint is of another number of ranks or is not there."""
    meta_file = directory / "learner.json"
    if not meta_file.is_file():
        raise ConfigError(f"{directory} holds no learner checkpoint: {meta_file.name} is missing. Resume from a directory that was saved.")
    meta = json.loads(meta_file.read_text())
    if meta["world_size"] != world_size:
        raise ConfigError(
            f"{directory} was saved by {meta['world_size']} learner ranks, this run has {world_size}. "
            f"Set actor.num_nodes * actor.num_gpus_per_node to {meta['world_size']}."
        )
    loaded, _ = engine.load_checkpoint(str(directory), tag=TAG)
    if loaded is None:
        raise ConfigError(f"DeepSpeed found no checkpoint in {directory / TAG}. The directory is incomplete; resume from an older one.")
    set_rng_state(torch.load(directory / f"rank{rank}.pt", weights_only=True))
    return meta["version"]
