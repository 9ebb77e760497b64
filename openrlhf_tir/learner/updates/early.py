"""Early: parts of a batch whose last groups still roll -> their gradients, summed in DeepSpeed; the last part -> the
one update of them all (pipeline.early_accumulation).

    part --forward, backward--> raw sums of gradients, losses and counts       no weight changes
    last part, likewise, then   gradient / N, its norm, clipping, one optimiser step

A mean over the batch is a sum over N, and N (trained tokens, or sequences) is known at the end only. So losses are
summed over 1 instead, and the optimiser's step divides by N once, before norm and clip: DeepSpeed divides by its loss
scale there, which is 1 at any other time. The update is that of one step on the whole batch but for rounding.

What needs the whole batch before its first gradient is refused at start (config/rules.py): whitened advantages, a
critic, several updates, terms of the loss whose means are over different numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ...algorithms.aggregate import GlobalCounts
from ...algorithms.losses.diagnostics import Tally
from ...config import Config
from ...types import TrainBatch
from ..objective import KlInLoss, PolicyObjective
from ..openrlhf_adapter import PolicyModel
from ..packing import Row
from ..passes import Passes
from ..rows import Sample

Part = tuple[TrainBatch, Sequence[Sample], Sequence[Row]]
"""A part of the batch, and what this rank has of it: samples, and the rows of those that count."""


class Begun:
    """A batch that the learner has begun on. Collective: all ranks add the same parts in the same order."""

    def __init__(self, cfg: Config, model: PolicyModel, passes: Passes, version: int, kl: KlInLoss | None) -> None:
        """`version`: the learner's, at which the batch is trained."""
        self.cfg, self.model, self.passes, self.version, self.kl = cfg, model, passes, version, kl
        self.tally = Tally(passes.device)
        ranks = passes.strategy.world_size
        self.counts = GlobalCounts(0.0, 0.0, ranks, sum_norm=cfg.loss_sum_norm)
        """Those of all parts so far, over all ranks."""
        self.parts: list[Part] = []
        """What is named where the gradient is not finite."""
        self._over_one = GlobalCounts(1.0, 1.0, ranks, sum_norm=cfg.loss_sum_norm)
        self._summed = 0.0

    @property
    def trajectories(self) -> int:
        """Those of all parts so far and all ranks."""
        return sum(len(batch.rank_of) for batch, _, _ in self.parts)

    @property
    def divisor(self) -> float:
        """What the sums are to be divided by: N, in units of what they were divided by already."""
        name = "batch_num_tokens" if self.cfg.loss_by_token else "global_batch_size"
        return self.counts.loss_kwargs()[name] / self._over_one.loss_kwargs()[name]

    @property
    def loss(self) -> float:
        """The global mean so far."""
        return self._over_one.unscale(self._summed) / self.divisor

    def add(
        self,
        part: Part,
        counts: GlobalCounts,
        names: Mapping[str, type],
        optimizer: Any,
        *,
        last: bool,
    ) -> None:
        """Forward and backward of this rank's rows. `counts`: of the part, over all ranks; `last`: the optimiser's step
        comes next."""
        self.parts.append(part)
        self.counts = GlobalCounts(
            self.counts.tokens + counts.tokens,
            self.counts.sequences + counts.sequences,
            counts.dp_size,
            sum_norm=counts.sum_norm,
        )
        objective = PolicyObjective(self.cfg, self.model, self._over_one, self.tally, self.kl)
        self._summed += self.passes.accumulate(self.model, optimizer, part[2], names, objective, last=last)


@contextmanager
def gradients_divided(engine: Any, by: float) -> Iterator[None]:
    """Within the block an optimiser step of this DeepSpeed engine divides its gradients by so much, before their norm
    is told and clipped."""
    scaler = engine.optimizer.loss_scaler
    before, scaler.cur_scale = scaler.cur_scale, scaler.cur_scale * by
    try:
        yield
    finally:
        scaler.cur_scale = before


def forget_gradients(engine: Any) -> None:
    """What was accumulated since the last optimiser step is void: the next backward pass of this ZeRO-3 engine writes
    over it."""
    engine.optimizer.zero_grad()  # and with it micro_step_id, by which DeepSpeed knows what to write over
