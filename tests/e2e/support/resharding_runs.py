"""What one learner process does for learner/test_resharding.py: a checkpoint of one number of ranks, then its resume on
another. Rank 0 pickles results.

saving    one step, a checkpoint, one step more, an export
resuming  that checkpoint on as many ranks as there are now, and the same step more
zero_2    the average alone, with the other stage

Every run keeps an average of its weights.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

from .learner_runs import GAE, _weights, batch, broken_batch, config

KINDS: dict[str, dict] = {
    "plain": {},
    "critic": {"algo": GAE, "critic": {"learning_rate": 1e-3}},
    "lora": {"lora": {"rank": 4, "alpha": 8}},
    "bf16": {"param_dtype": "bf16"},
    "small sub groups": {},
}
"""Keyword arguments of `config`."""
BETA = 0.75
SUB_GROUP = 20_000
"""Elements of one rank: the tiny model then has several sub groups, and others on one rank than on two."""


def saving(rank: int, world: int, port: int, model: Path, out: Path) -> None:
    found = {}
    for kind in KINDS:
        learner = _start(kind, rank, world, port, model)
        fresh = everything(learner)
        learner.step(*batch(world, seed=0))
        learner.save(out / f"{kind}-{world}")
        learner.written()
        saved = everything(learner)
        learner.step(*batch(world, seed=1))
        found[kind] = fresh, saved, everything(learner)
        learner.step(*broken_batch(world))
        learner.export(out / f"export {kind}-{world}")
        found[kind] += (everything(learner),)
    _leave(found, f"saved-{world}", learner, out)


def resuming(rank: int, world: int, port: int, model: Path, out: Path, saved: int) -> None:
    found = {}
    for kind in KINDS:
        learner = _start(kind, rank, world, port, model)
        learner.load(out / f"{kind}-{saved}")
        loaded = everything(learner)
        learner.step(*batch(world, seed=1))
        found[kind] = None, loaded, everything(learner)
    _leave(found, f"resumed-{saved}-on-{world}", learner, out)


def zero_2(rank: int, world: int, port: int, model: Path, out: Path) -> None:
    """The average of a run with ZeRO-2, through an export and a checkpoint."""
    from openrlhf_tir.learner.zero3 import Zero3Rank

    def start() -> Zero3Rank:
        return Zero3Rank(config(model, world, ema=BETA, zero_stage=2), rank, world, "127.0.0.1", port)

    learner = start()
    before = _weights(learner)
    learner.step(*batch(world, seed=0))
    after = _weights(learner)
    learner.save(out / f"zero-2-{world}")
    learner.written()
    learner.export(out / f"export zero-2-{world}")
    resumed = start()
    resumed.load(out / f"zero-2-{world}")
    restored = all((a == b).all() for a, b in zip(resumed.average.flat, learner.average.flat, strict=True))
    _leave(
        {"before": before, "after": after, "exported": _weights(learner), "restored": restored},
        f"zero-2-{world}",
        learner,
        out,
    )


def _start(kind: str, rank: int, world: int, port: int, model: Path):
    import torch

    from openrlhf_tir.learner.openrlhf_adapter import ZeroStrategy
    from openrlhf_tir.learner.zero3 import Zero3Rank

    torch.set_num_threads(1)

    class SmallGroups(ZeroStrategy):
        def get_ds_train_config(self, optim_dict=None, *, max_norm=None):
            made = super().get_ds_train_config(optim_dict, max_norm=max_norm)
            made["zero_optimization"]["sub_group_size"] = SUB_GROUP
            return made

    import openrlhf_tir.learner.zero3 as zero3

    zero3.ZeroStrategy = SmallGroups if kind == "small sub groups" else ZeroStrategy
    return Zero3Rank(config(model, world, ema=BETA, **KINDS[kind]), rank, world, "127.0.0.1", port)


def _leave(found: dict, name: str, learner, out: Path) -> None:
    if learner.rank == 0:
        (out / f"{name}.pkl").write_bytes(pickle.dumps(found))
    learner.close()


def everything(learner) -> dict[str, object]:
    """Full tensors of every engine by (engine, what, name): weights as they compute, masters, moments; and the settings
    that step them."""
    engines = {"policy": learner.engine} | (
        {"critic": learner.auxiliary.critic.engine} if learner.auxiliary.critic else {}
    )
    tensors: dict[tuple[str, str, str], np.ndarray] = {
        ("policy", "weights", name): value for name, value in _weights(learner).items()
    }
    for role, engine in engines.items():
        optimizer = engine.optimizer
        for params, flat in zip(optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat, strict=True):
            state = optimizer.optimizer.state.get(flat, {})  # before the first step there are no moments
            kept = {"fp32": flat.data} | {what: state[what] for what in ("exp_avg", "exp_avg_sq") if what in state}
            for what, values in kept.items():
                for name, full in _whole(params, values, engine.param_names).items():
                    tensors[role, what, name] = full
    first = learner.engine.optimizer
    for params, flat in zip(first.fp16_groups, learner.average.flat, strict=True):
        tensors |= {
            ("policy", "ema", name): full for name, full in _whole(params, flat, learner.engine.param_names).items()
        }
    steps = [float(first.optimizer.state.get(flat, {}).get("step", 0)) for flat in first.fp32_partitioned_groups_flat]
    decay = sorted(group["weight_decay"] for group in first.optimizer.param_groups)
    return {
        "tensors": tensors,
        "settings": (sorted(set(steps)), decay),
        "groups": len(first.fp16_groups),
        "version": learner.version,
        "coef": learner.auxiliary.coef.value,
    }


def _whole(params, flat, names) -> dict[str, np.ndarray]:
    """The parts of all ranks, put together without anything of the project's."""
    import torch
    import torch.distributed as dist

    out, offset = {}, 0
    for param in params:
        size = param.ds_tensor.ds_numel
        part = flat[offset : offset + size].contiguous()
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part)
        out[names[param]] = torch.cat(parts)[: param.ds_numel].numpy().copy()
        offset += size
    return out
