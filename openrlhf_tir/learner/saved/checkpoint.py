"""Checkpoint of one learner rank: DeepSpeed's model and optimiser shards, the RNG states, and the version. Resume is
bit-exact on as many ranks; on another number every rank reads its share of all files (shards.py, reshard.py).

DeepSpeed does not store RNG states. The learning rate is a function of the version (schedule.py), so there is no
scheduler state. Layout of the directory: zero/ (DeepSpeed's files of the policy), critic/ (those of the critic, if
there is one), rank<r>.pt (RNG), ema_rank<r>.pt (the average of the weights, if there is one), learner.json (version,
world size, KL coefficient). The reference model is in no checkpoint: it is what the run started from.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import deepspeed
import numpy as np
import torch

from ...errors import ConfigError
from ..agreement import agree
from . import reshard
from .background import BackgroundWriter, write_text
from .shards import Shards

POLICY = "zero"
"""The policy's engine among those of a checkpoint."""
SETTINGS = ("betas", "eps", "weight_decay")
"""What is restored of each group of the optimiser's parameters. The learning rate is set before every step."""


class RngState(TypedDict):
    python: tuple[Any, ...]
    numpy: tuple[Any, ...]
    torch: torch.Tensor
    cuda: NotRequired[torch.Tensor]


def rng_state() -> RngState:
    """Everything a training step could draw from, as tensors, numbers and text: `torch.load` runs no code."""
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


def save_rank(
    engines: Mapping[str, deepspeed.DeepSpeedEngine],
    writer: BackgroundWriter,
    directory: Path,
    *,
    rank: int,
    world_size: int,
    facts: Mapping[str, Any],
    more: Mapping[str, Any],
) -> None:
    """Collective. `directory` must be the same on all ranks; making it appear atomically is the caller's business.

    engines: by the name of their directory, each with `writer` as its checkpoint_engine; files are complete when its
    `written` returns. facts: version, and whatever numbers a resume needs besides. more: further files of this rank by
    name, tensors that `torch.save` writes.
    Raises OSError on every rank when the disk of one refuses; no thread writes then.
    """
    writer.begin()
    with writer.keeping():
        directory.mkdir(parents=True, exist_ok=True)
    agree(writer.fault)  # before anything is copied
    try:
        for tag, engine in engines.items():
            with _recovery_script_kept(engine, writer):
                engine.save_checkpoint(str(directory), tag=tag, save_latest=False)
        for name, state in {f"rank{rank}.pt": rng_state(), **more}.items():
            writer.save(state, directory / name)
        if rank == 0:
            with writer.keeping():
                write_text(directory / "learner.json", json.dumps({**facts, "world_size": world_size}))
        agree(writer.fault)
    except OSError:
        writer.begin()
        raise


@contextmanager
def _recovery_script_kept(engine: deepspeed.DeepSpeedEngine, writer: BackgroundWriter) -> Iterator[None]:
    """DeepSpeed's rank 0 copies zero_to_fp32.py into the directory while others are on the way to its last barrier."""
    copy = engine._copy_recovery_script

    def copy_or_keep(path: str) -> None:
        with writer.keeping():
            copy(path)

    engine._copy_recovery_script = copy_or_keep
    try:
        yield
    finally:
        del engine._copy_recovery_script  # the class's own again


def load_rank(
    engines: Mapping[str, deepspeed.DeepSpeedEngine], directory: Path, *, rank: int, world_size: int
) -> dict[str, Any]:
    """Collective. The facts. Raises ConfigError when there is no checkpoint, or when it cannot be this run's."""
    meta_file = directory / "learner.json"
    if not meta_file.is_file():
        raise ConfigError(
            f"{directory} holds no learner checkpoint: {meta_file.name} is missing."
            " Resume from a directory that was saved."
        )
    if not (directory / POLICY).is_dir():
        raise ConfigError(f"{directory} is incomplete: {POLICY}/ is missing. Resume from an older checkpoint.")
    for tag in engines:
        if not (directory / tag).is_dir():
            raise ConfigError(
                f"{directory} was saved by a run without a {tag}, and this run has one. Resume with the"
                " algo.advantage.estimator of that run."
            )
    meta = json.loads(meta_file.read_text())
    saved = meta["world_size"]
    for tag, engine in engines.items():
        with _settings_kept(engine):
            sharded = engine.zero_optimization_stage() == 3
            if saved == world_size and not (sharded and reshard.regrouped(engine, directory / tag, rank)):
                _load_as_saved(engine, directory, tag)
            elif sharded:
                reshard.load(engine, Shards(directory / tag, saved, rank, world_size))
            else:
                raise ConfigError(
                    f"{directory} was saved by {saved} learner ranks, this run has {world_size}, and only checkpoints"
                    " of ds.zero_stage = 3 can be read by another number. Set actor.num_nodes *"
                    f" actor.num_gpus_per_node to {saved}."
                )
    set_rng_state(torch.load(directory / f"rank{rank % saved}.pt", weights_only=True))
    return meta


def _load_as_saved(engine: deepspeed.DeepSpeedEngine, directory: Path, tag: str) -> None:
    loaded, _ = engine.load_checkpoint(str(directory), tag=tag)
    if loaded is None:
        raise ConfigError(
            f"DeepSpeed found no checkpoint in {directory / tag}."
            " The directory is incomplete; resume from an older one."
        )


@contextmanager
def _settings_kept(engine: deepspeed.DeepSpeedEngine) -> Iterator[None]:
    """Betas, epsilon and weight decay are what the configuration says now; DeepSpeed would take those of the
    checkpoint, which nobody sees."""
    now = [{name: group[name] for name in SETTINGS if name in group} for group in engine.optimizer.param_groups]
    yield
    for group, settings in zip(engine.optimizer.param_groups, now, strict=True):
        group.update(settings)
