"""Resharding: the shares of n saved ranks -> a running DeepSpeed engine of m, ZeRO-3 only.

restored    masters, moments, Adam's count of steps, loss scale, what is not trained, buffers, counters: the saved
            numbers, bit for bit
other       sums over the ranks: gradients of the same batch are added up in another order, which changes their last
            bits
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deepspeed
import torch

from .shards import Shards, mapped

OF_ALL = ("loss_scaler", "dynamic_loss_scale", "overflow")
"""What DeepSpeed's optimiser saves besides tensors, the same on every rank."""
COUNTERS = ("global_steps", "global_samples", "skipped_steps")


def regrouped(engine: deepspeed.DeepSpeedEngine, directory: Path, rank: int) -> bool:
    """Return whether a checkpoint of as many ranks has its parameters in other sub groups than the running engine.

    It has when it was written with another `sub_group_size`; DeepSpeed's own loading would fail on it.
    """
    saved = mapped(directory, rank, "model_states")["param_shapes"]
    names = engine.param_names
    return [list(members) for members in saved] != [[names[p] for p in group] for group in engine.optimizer.fp16_groups]


def load(engine: deepspeed.DeepSpeedEngine, shards: Shards) -> None:
    """Collective. As engine.load_checkpoint, of a checkpoint of another number of ranks."""
    optimizer, names = engine.optimizer, engine.param_names
    optimizer.checkpoint_event_prologue()
    # this rank's own: filled, and spread by DeepSpeed as it does with what it reads from a file
    own: dict[str, Any] = optimizer.state_dict()
    state = own["optimizer_state_dict"]["state"] = {}
    for group, params in enumerate(optimizer.fp16_groups):
        members = [names[p] for p in params]
        own["fp32_flat_groups"][group].data.copy_(torch.cat([shards.master(name) for name in members]))
        if kept := shards.kept(members[0]):
            state[group] = {
                which: torch.cat([shards.moment(which, name) for name in members])
                if per_weight
                else shards.state(which, members[0])
                for which, per_weight in kept.items()
            }
    own |= {name: shards.optimiser[name] for name in OF_ALL}
    optimizer.load_state_dict({deepspeed.comm.get_rank(group=optimizer.dp_process_group): own})
    frozen = dict(shards.frozen())
    for param, name in names.items():
        if name in frozen:
            param.ds_tensor.data.copy_(frozen[name].view_as(param.ds_tensor))
    buffers = dict(engine.module.named_buffers())
    for name in shards.model.get("buffer_names") or ():
        buffers[name].copy_(shards.model["module"][name])
    optimizer.checkpoint_event_epilogue()
    if engine.lr_scheduler is not None:
        engine.lr_scheduler.load_state_dict(shards.model["lr_scheduler"])
    for counter in COUNTERS:
        setattr(engine, counter, shards.model[counter])
