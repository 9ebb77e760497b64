"""EMA: an exponential moving average of the policy's weights, beside them. Never sampled from or trained; exported, and
in checkpoints.

    ema = beta * ema + (1 - beta) * w        after every optimizer step; w: the float32 master weights; at the beginning
                                             ema = w

Each rank keeps that of its own shard, in float32 and in host memory: element by element, so that the number of ranks
changes nothing. A step whose gradient is not finite is none, and averages nothing. With LoRA the adapters are averaged,
as nothing else moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import deepspeed
import torch

from .saved.shards import Shards


def masters(engine: deepspeed.DeepSpeedEngine) -> list[torch.Tensor]:
    """This rank's share of the fp32 weights that the optimizer steps: flat, one per (ZeRO-3: sub) group."""
    optimizer = engine.optimizer
    return (
        optimizer.fp32_partitioned_groups_flat
        if engine.zero_optimization_stage() == 3
        else optimizer.single_partition_of_fp32_groups
    )


def spread_masters(engine: deepspeed.DeepSpeedEngine) -> None:
    """Collective. The weights that compute become the master weights, rounded, as after an optimizer step."""
    optimizer = engine.optimizer
    if engine.zero_optimization_stage() != 3:
        optimizer.update_lp_params()
        return
    optimizer.checkpoint_event_prologue()
    for group, (rounded, master) in enumerate(
        zip(optimizer.fp16_partitioned_groups_flat, masters(engine), strict=True)
    ):
        rounded.data.copy_(master.data)
        parts = optimizer.unflatten(rounded, optimizer.fp16_partitioned_groups[group])
        for partitioned, part in zip(optimizer.fp16_partitioned_groups[group], parts, strict=True):
            partitioned.data = part.data
    optimizer.checkpoint_event_epilogue()


class WeightAverage:
    def __init__(self, engine: deepspeed.DeepSpeedEngine, beta: float) -> None:
        self.engine, self.beta = engine, beta
        self.flat = [master.detach().to("cpu", torch.float32, copy=True) for master in masters(engine)]

    @torch.no_grad()
    def update(self) -> None:
        """After an optimizer step."""
        for ema, master in zip(self.flat, masters(self.engine), strict=True):
            # As ema + (1 - beta) (w - ema): beta and 1 - beta, each rounded, do not add up to 1, and that error grows
            # to 1e-4 at .9999.
            ema.lerp_(master.detach().to("cpu", torch.float32), 1.0 - self.beta)

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Collective. Within the block the model computes, and is written, with the average; afterwards with its own
        weights, bit for bit."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for ema, master in zip(self.flat, masters(self.engine), strict=True):
            weights = master.detach().to("cpu", copy=True)
            master.data.copy_(ema)
            ema.copy_(weights)
        spread_masters(self.engine)

    def files(self, rank: int) -> dict[str, list[torch.Tensor]]:
        """What a checkpoint keeps of it: the name of this rank's file, and what is in it."""
        return {_file(rank): self.flat}

    @torch.no_grad()
    def load(self, directory: Path, policy: Path, *, rank: int, world_size: int, saved: int) -> None:
        """After the weights. policy: the directory of its engine's files, `saved` ranks wrote it. From a checkpoint
        without an average it begins anew."""
        if not (directory / _file(0)).is_file():
            parts = masters(self.engine)
        elif saved == world_size:
            parts = _read(directory, rank)
        else:
            shards = Shards(policy, saved, rank, world_size)
            flat, names = [_read(directory, r) for r in range(saved)], self.engine.param_names
            parts = [
                torch.cat([shards.of(flat, names[param]) for param in params])
                for params in self.engine.optimizer.fp16_groups
            ]
        for ema, part in zip(self.flat, parts, strict=True):
            ema.copy_(part.detach())


def _file(rank: int) -> str:
    return f"ema_rank{rank}.pt"


def _read(directory: Path, rank: int) -> list[torch.Tensor]:
    return torch.load(directory / _file(rank), map_location="cpu", mmap=True, weights_only=True)
