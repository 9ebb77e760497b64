"""Load a ZeRO-3 checkpoint of n ranks into a running DeepSpeed engine of m ranks.

Master weights, moments, Adam's step counts, the loss scale, frozen parameters, buffers and counters are restored bit
for bit. Training then goes on with other rounding errors than on n ranks: the ranks' gradients are added up in another
order, which changes the last bits of the sum.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deepspeed
import torch

from .shards import Shards, load_mapped

SHARED_KEYS = ("loss_scaler", "dynamic_loss_scale", "overflow")
"""What DeepSpeed's optimizer saves in addition to tensors. It is the same on every rank."""
COUNTERS = ("global_steps", "global_samples", "skipped_steps")


def regrouped(engine: deepspeed.DeepSpeedEngine, directory: Path, rank: int) -> bool:
    """Return True if a checkpoint of the same number of ranks has its parameters in other sub groups than the engine.

    That is so if it was written with another `sub_group_size`. DeepSpeed's own loading would fail on it.
    """
    saved = load_mapped(directory, rank, "model_states")["param_shapes"]
    names = engine.param_names
    return [list(members) for members in saved] != [[names[p] for p in group] for group in engine.optimizer.fp16_groups]


def load(engine: deepspeed.DeepSpeedEngine, shards: Shards) -> None:
    """Do what engine.load_checkpoint does, with a checkpoint of another number of ranks. Collective."""
    optimizer = engine.optimizer
    names = engine.param_names
    optimizer.checkpoint_event_prologue()
    # This rank's own state is filled in place. DeepSpeed then distributes it, as it does with what it reads from a
    # file.
    own: dict[str, Any] = optimizer.state_dict()
    state: dict[int, Any] = {}
    own["optimizer_state_dict"]["state"] = state
    for group, params in enumerate(optimizer.fp16_groups):
        members = [names[p] for p in params]
        own["fp32_flat_groups"][group].data.copy_(torch.cat([shards.master(name) for name in members]))
        if kinds := shards.state_kinds(members[0]):
            state[group] = {
                key: torch.cat([shards.moment(key, name) for name in members])
                if per_weight
                else shards.scalar_state(key, members[0])
                for key, per_weight in kinds.items()
            }
    own |= {name: shards.optimizer[name] for name in SHARED_KEYS}
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
