"""Save and load the checkpoint of one learner rank.

    zero/             DeepSpeed's files of the policy: model and optimizer shards
    critic/           those of the critic, if there is one
    rank<r>.pt        states of the random number generators, which DeepSpeed does not store
    ema_rank<r>.pt    the average of the weights, if there is one (ema.py)
    learner.json      version, number of ranks, KL coefficient

A resume on the same number of ranks is bit-exact. On another number every rank reads its share of all files (shards.py,
reshard.py). There is no state of the learning-rate schedule, because the rate is a function of the version
(schedule.py). The reference model is not stored: it is the model that the run started from.
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
"""Name of the directory of the policy's engine in a checkpoint."""
SETTINGS = ("betas", "eps", "weight_decay", "fused")
"""Settings of the optimizer's parameter groups that a resume takes from the configuration, not from the checkpoint.
The learning rate is not among them because it is set before every step."""


class RngState(TypedDict):
    """States of all random number generators of a rank."""

    python: tuple[Any, ...]
    numpy: tuple[Any, ...]
    torch: torch.Tensor
    cuda: NotRequired[torch.Tensor]


def rng_state() -> RngState:
    """Return the states of all generators that a training step could use.

    They are tensors, numbers and text, so that `torch.load` can load them without running code.
    """
    legacy_state = np.random.get_state()
    assert isinstance(legacy_state, tuple), "get_state returns a tuple unless legacy=False"
    name, keys, *counters = legacy_state
    numpy_state = (name, torch.from_numpy(keys.astype(np.int64)), *counters)
    state: RngState = {"python": random.getstate(), "numpy": numpy_state, "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: RngState) -> None:
    """Restore what `rng_state` returned."""
    random.setstate(state["python"])
    name, keys, *counters = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *counters))
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
    counters: Mapping[str, Any],
    extra_files: Mapping[str, Any],
) -> None:
    """Hold a rank's state as it is now, and start to write it to `directory`. Collective.

    The files are complete when `writer.written` returns on every rank. The directory does not appear atomically; that
    is up to the caller.

    Args:
        engines: The DeepSpeed engines by the name of their directory. Each has `writer` as its checkpoint_engine.
        writer: Writes the files.
        directory: The checkpoint's directory, the same on all ranks.
        rank: This rank.
        world_size: Number of ranks.
        counters: The version, and other numbers that a resume needs.
        extra_files: Further files of this rank by name; `torch.save` writes their tensors.

    Raises:
        OSError: On every rank if the disk of one refuses. No thread writes any more then.
    """
    writer.begin()
    with writer.recording_fault():
        directory.mkdir(parents=True, exist_ok=True)
    agree(writer.fault)  # a full disk is noticed here, before anything is copied
    try:
        for tag, engine in engines.items():
            with _recording_script_fault(engine, writer):
                engine.save_checkpoint(str(directory), tag=tag, save_latest=False)
        for name, state in {f"rank{rank}.pt": rng_state(), **extra_files}.items():
            writer.save(state, directory / name)
        if rank == 0:
            with writer.recording_fault():
                write_text(directory / "learner.json", json.dumps({**counters, "world_size": world_size}))
        agree(writer.fault)
    except OSError:
        writer.begin()
        raise


@contextmanager
def _recording_script_fault(engine: deepspeed.DeepSpeedEngine, writer: BackgroundWriter) -> Iterator[None]:
    """Store a disk error of DeepSpeed's copy of zero_to_fp32.py in `writer.fault` inside the block.

    Rank 0 copies the script into the directory while the other ranks wait at DeepSpeed's last barrier, so an exception
    would leave them there.
    """
    original = engine._copy_recovery_script

    def copy_script(path: str) -> None:
        with writer.recording_fault():
            original(path)

    engine._copy_recovery_script = copy_script
    try:
        yield
    finally:
        del engine._copy_recovery_script  # uncovers the class's method


def load_rank(
    engines: Mapping[str, deepspeed.DeepSpeedEngine], directory: Path, *, rank: int, world_size: int
) -> dict[str, Any]:
    """Load a checkpoint into the engines, restore the random number generators, and return its counters. Collective.

    Args:
        engines: The DeepSpeed engines by the name of their directory.
        directory: The checkpoint.
        rank: This rank.
        world_size: Number of ranks of this run, which may differ from the checkpoint's.

    Returns:
        The counters that `save_rank` got, and `world_size`, the number of ranks that wrote the checkpoint.

    Raises:
        ConfigError: There is no checkpoint, it is incomplete, or it does not fit this run.
        CheckpointDamaged: The file of a rank is missing.
    """
    meta_file = directory / "learner.json"
    if not meta_file.is_file():
        raise ConfigError(
            f"{directory} is not a learner checkpoint: {meta_file.name} is missing."
            " Resume from a directory that was saved."
        )
    if not (directory / POLICY).is_dir():
        raise ConfigError(f"{directory} is incomplete: {POLICY}/ is missing. Resume from an older checkpoint.")
    for tag in engines:
        if not (directory / tag).is_dir():
            raise ConfigError(
                f"{directory} was saved by a run without a {tag}, but this run has one. Resume with the"
                " algo.advantage.estimator of that run.",
                code="resume",
                setting="algo.advantage.estimator",
            )
    meta = json.loads(meta_file.read_text())
    saved = meta["world_size"]
    for tag, engine in engines.items():
        with _keeping_settings(engine):
            sharded = engine.zero_optimization_stage() == 3
            if saved == world_size and not (sharded and reshard.regrouped(engine, directory / tag, rank)):
                _load_as_saved(engine, directory, tag)
            elif sharded:
                reshard.load(engine, Shards(directory / tag, saved, rank, world_size))
            else:
                raise ConfigError(
                    f"{directory} was saved by {saved} learner ranks, but this run has {world_size}. Only checkpoints"
                    " of ds.zero_stage = 3 can be loaded by another number of ranks. Set actor.num_nodes *"
                    f" actor.num_gpus_per_node to {saved}."
                )
    set_rng_state(torch.load(directory / f"rank{rank % saved}.pt", weights_only=True))
    return meta


def _load_as_saved(engine: deepspeed.DeepSpeedEngine, directory: Path, tag: str) -> None:
    """Load an engine from a checkpoint of the same number of ranks, with DeepSpeed's own method."""
    loaded, _ = engine.load_checkpoint(str(directory), tag=tag)
    if loaded is None:
        raise ConfigError(
            f"DeepSpeed found no checkpoint in {directory / tag}."
            " The directory is incomplete; resume from an older one."
        )


@contextmanager
def _keeping_settings(engine: deepspeed.DeepSpeedEngine) -> Iterator[None]:
    """Keep the optimizer's SETTINGS when the block loads a checkpoint.

    DeepSpeed would silently take those of the checkpoint.
    """
    configured = [{name: group[name] for name in SETTINGS if name in group} for group in engine.optimizer.param_groups]
    yield
    for group, settings in zip(engine.optimizer.param_groups, configured, strict=True):
        group.update(settings)
    if any(group.get("fused") for group in engine.optimizer.param_groups):
        # A fused AdamW counts its steps on the parameter's device, the plain one of older runs on the CPU.
        for parameter, state in engine.optimizer.optimizer.state.items():
            if "step" in state:
                state["step"] = state["step"].to(parameter.device)
