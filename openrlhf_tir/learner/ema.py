"""Keep an exponential moving average (EMA) of the policy's weights. It is exported and saved, never sampled or trained.

    ema <- beta * ema + (1 - beta) * w

after every optimizer step, where w are the fp32 master weights; at the start ema = w.

Each rank averages its own shard, in float32 and in host memory. The average is elementwise, so the number of ranks does
not change it. A step that was skipped because its gradient was not finite is not averaged. With LoRA only the adapters
change, so only they are averaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import deepspeed
import torch

from .saved.shards import Shards


def master_weights(engine: deepspeed.DeepSpeedEngine) -> list[torch.Tensor]:
    """Return this rank's share of the fp32 weights that the optimizer updates.

    Each tensor is flat; there is one per parameter group, or per sub group with ZeRO-3.
    """
    optimizer = engine.optimizer
    if engine.zero_optimization_stage() == 3:
        return optimizer.fp32_partitioned_groups_flat
    return optimizer.single_partition_of_fp32_groups


def copy_masters_to_model(engine: deepspeed.DeepSpeedEngine) -> None:
    """Overwrite the model's weights with the rounded master weights, as an optimizer step does at its end. Collective.

    DeepSpeed has a method for it below ZeRO-3 only. For ZeRO-3 these are the same steps, on its private attributes.
    """
    optimizer = engine.optimizer
    if engine.zero_optimization_stage() != 3:
        optimizer.update_lp_params()
        return
    optimizer.checkpoint_event_prologue()
    for group, (rounded, master) in enumerate(
        zip(optimizer.fp16_partitioned_groups_flat, master_weights(engine), strict=True)
    ):
        rounded.data.copy_(master.data)
        parts = optimizer.unflatten(rounded, optimizer.fp16_partitioned_groups[group])
        for partitioned, part in zip(optimizer.fp16_partitioned_groups[group], parts, strict=True):
            partitioned.data = part.data
    optimizer.checkpoint_event_epilogue()


class WeightAverage:
    """The moving average of one rank's shard of an engine's weights."""

    def __init__(self, engine: deepspeed.DeepSpeedEngine, beta: float) -> None:
        self.engine = engine
        self.beta = beta
        self.flat = [master.detach().to("cpu", torch.float32, copy=True) for master in master_weights(engine)]
        """The average, in the layout of `master_weights`."""

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the average. Call it after each optimizer step."""
        for ema, master in zip(self.flat, master_weights(self.engine), strict=True):
            # Computed as ema + (1 - beta) (w - ema). In the form beta * ema + (1 - beta) * w the two rounded factors do
            # not add up to 1, and the error grows to 1e-4 at beta = 0.9999.
            ema.lerp_(master.detach().to("cpu", torch.float32), 1.0 - self.beta)

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Put the average into the model inside the block, and the weights back afterwards, bit for bit. Collective.

        The model then computes with the average, and what is written from it is the average.
        """
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for ema, master in zip(self.flat, master_weights(self.engine), strict=True):
            weights = master.detach().to("cpu", copy=True)
            master.data.copy_(ema)
            ema.copy_(weights)
        copy_masters_to_model(self.engine)

    def files(self, rank: int) -> dict[str, list[torch.Tensor]]:
        """Return what a checkpoint stores of the average: the name of this rank's file and its content."""
        return {_file_name(rank): self.flat}

    @torch.no_grad()
    def load(self, directory: Path, policy: Path, *, rank: int, world_size: int, saved: int) -> None:
        """Load the average from a checkpoint, which may be of another number of ranks. Load the weights before it.

        If the checkpoint has no average, the average starts at the loaded weights.

        Args:
            directory: The checkpoint.
            policy: The directory in it that holds the files of the policy's engine.
            rank: This rank.
            world_size: Number of ranks of this run.
            saved: Number of ranks that wrote the checkpoint.
        """
        flat = averages_of(directory, saved)
        if flat is None:
            parts = master_weights(self.engine)
        elif saved == world_size:
            parts = flat[rank]
        else:
            shards = Shards(policy, saved, rank, world_size)
            names = self.engine.param_names
            parts = [
                torch.cat([shards.own_part(flat, names[param]) for param in params])
                for params in self.engine.optimizer.fp16_groups
            ]
        for ema, part in zip(self.flat, parts, strict=True):
            ema.copy_(part.detach())


def averages_of(directory: Path, ranks: int) -> list[list[torch.Tensor]] | None:
    """Return the average of each saved rank in the layout of its `master_weights`, mapped to memory.

    Args:
        directory: A checkpoint.
        ranks: Number of ranks that wrote it.

    Returns:
        None if the checkpoint has no average.
    """
    if not (directory / _file_name(0)).is_file():
        return None
    files = [directory / _file_name(rank) for rank in range(ranks)]
    return [torch.load(file, map_location="cpu", mmap=True, weights_only=True) for file in files]


def _file_name(rank: int) -> str:
    return f"ema_rank{rank}.pt"
