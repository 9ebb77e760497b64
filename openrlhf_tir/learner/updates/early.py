"""Early accumulation: the gradients of a batch's first groups, while its last groups are still running.

    first parts   forward and backward -> DeepSpeed sums the gradients; no weight changes
    last part     the same, then gradient / N, its norm, clipping, one optimizer step (pipeline.early_accumulation)

The loss of a batch is a sum over N, the number of its trained tokens or sequences, and N is known only at the end. So
the losses are summed with N = 1, and the optimizer's step divides by N once, before norm and clipping. DeepSpeed
divides by its loss scale at that point, which is 1 otherwise; `gradients_divided` uses that. Apart from rounding, the
update equals that of one step on the whole batch.

Methods that need the whole batch before its first gradient are refused at the start of a run
(config/sections/early_accumulation.py): whitened advantages, a critic, several updates, and terms of the loss whose
means are over different numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from ...algorithms.global_counts import GlobalCounts
from ...algorithms.losses.diagnostics import Tally
from ...config import Config
from ...machine.replaced import replaced
from ...types import TrainBatch
from ..objective import PolicyObjective
from ..openrlhf_adapter import PolicyModel
from ..packing import Row
from ..passes import MicroBatchRunner
from ..rows import Sample

Part = tuple[TrainBatch, Sequence[Sample], Sequence[Row]]
"""A part of the batch, this rank's samples of it, and the rows of those samples that count."""


class EarlyUpdate:
    """An update whose parts are being accumulated. Every rank adds the same parts in the same order."""

    def __init__(self, cfg: Config, model: PolicyModel, runner: MicroBatchRunner, kl_coef: float) -> None:
        """Begin an update.

        Args:
            cfg: The configuration.
            model: The policy.
            runner: Runs the passes.
            kl_coef: Weight of the KL in the loss, if there is one.
        """
        self.cfg = cfg
        self.model = model
        self.runner = runner
        self.kl_coef = kl_coef
        self.tally = Tally(runner.device)
        ranks = runner.strategy.world_size
        self.counts = GlobalCounts(0.0, 0.0, ranks, sum_norm=cfg.loss_sum_norm)
        """Trained tokens and sequences of all parts so far, on all ranks."""
        self.parts: list[Part] = []
        """Kept so that a gradient that is not finite can be explained."""
        self._unit_counts = GlobalCounts(1.0, 1.0, ranks, sum_norm=cfg.loss_sum_norm)
        self._summed = 0.0

    @property
    def trajectories(self) -> int:
        """Number of trajectories of all parts so far, on all ranks."""
        return sum(len(batch.rank_of) for batch, _, _ in self.parts)

    @property
    def divisor(self) -> float:
        """N, by which the summed gradients have to be divided; relative to the counts that they were scaled with."""
        name = "batch_num_tokens" if self.cfg.loss_by_token else "global_batch_size"
        return self.counts.loss_kwargs()[name] / self._unit_counts.loss_kwargs()[name]

    @property
    def loss(self) -> float:
        """The global mean of the loss over all parts so far."""
        return self._unit_counts.unscale(self._summed) / self.divisor

    def add(self, part: Part, names: Mapping[str, type], optimizer: Any, *, last: bool) -> None:
        """Accumulate the gradient of a part. Collective.

        Args:
            part: The part.
            names: The fields that the loss needs, with their numpy types.
            optimizer: The policy's optimizer.
            last: True if the optimizer's step comes next.
        """
        self.parts.append(part)
        _, _, rows = part
        counts = self.runner.counts(rows, "trained")
        self.counts = replace(
            self.counts,
            tokens=self.counts.tokens + counts.tokens,
            sequences=self.counts.sequences + counts.sequences,
        )
        objective = PolicyObjective(self.cfg, self.model, self._unit_counts, self.tally, self.kl_coef)
        self._summed += self.runner.accumulate(self.model, optimizer, rows, names, objective, last=last)


def gradients_divided(engine: Any, divisor: float) -> AbstractContextManager[None]:
    """Make the optimizer's step of a DeepSpeed engine divide its gradients by `divisor` inside the block.

    The division comes before the gradients' norm is computed and clipped.
    """
    scaler = engine.optimizer.loss_scaler
    return replaced(scaler, "cur_scale", scaler.cur_scale * divisor)
