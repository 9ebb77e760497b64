"""The critic: the value V(prefix) of every trained token, on the policy's ranks.

It has a DeepSpeed engine, an optimizer and a learning-rate schedule of its own. `values` evaluates it, `train` makes
train.max_epochs passes over the parts of the batch (minibatches.critic_parts), with one optimizer step on each part:

    loss = 0.5 * mean over trained tokens of max((V - R)^2, (clip(V, V_old - value_clip, V_old + value_clip) - R)^2)

This is PPO's clipped value loss; R is the return and V_old the value before the first step. A part is a part of the
whole batch and its mean is over the tokens of all ranks, so the steps do not depend on the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ...algorithms.global_counts import GlobalCounts
from ...config import Config
from ..agreement import only_on_rank_0
from ..export import write_model_files
from ..lora import hf_weights
from ..openrlhf_adapter import ValueLoss, ZeroStrategy, value_model
from ..packing import MicroBatch, Row
from ..passes import MicroBatchRunner
from ..schedule import critic_schedule
from ..weight_shards import write_shards

FIELDS: dict[str, type] = {"trained": np.float32, "values": np.float32, "returns": np.float32}
"""The fields of a row that the critic trains on."""


class Critic:
    """The critic of one rank. Its methods are collective."""

    def __init__(self, cfg: Config, strategy: ZeroStrategy, runner: MicroBatchRunner) -> None:
        self.cfg = cfg
        self.runner = runner
        self.lr_at = critic_schedule(cfg)
        model = value_model(cfg, strategy)
        self.hf_config = model.config
        self.engine, self.optimizer = strategy.prepare_training(model, cfg, cfg.critic)
        self.loss = ValueLoss(cfg.critic.value_clip, token_level_loss=cfg.loss_agg_mode != "seq-mean-token-mean")

    def values(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """Return the values of each row, [L-1] float32, without gradients.

        Entry t is the value of the prefix that ends before token t+1; 0.0 where the row's field `trained` is 0.
        """
        return self.runner.score_rows(self.engine, rows, {"trained": np.float32}, self._values)

    def train(self, parts: Sequence[Sequence[Row]], version: int) -> dict[str, float]:
        """Make the critic's updates for one batch.

        An update whose gradient is not finite changes nothing. A part without a trained token on any rank is left out.

        Args:
            parts: For each update, the rows that this rank has of it.
            version: The learner's version before the batch; it decides the learning rate.

        Returns:
            critic_loss and critic_grad_norm, means over the updates; critic_lr; and critic_skipped, the number of
            updates whose gradient was not finite.
        """
        lr = self.lr_at(version)
        losses: list[float] = []
        norms: list[float] = []
        skipped = 0
        for _ in range(self.cfg.train.max_epochs):
            for part in parts:
                counts = self.runner.counts(part, "trained")
                if not counts.tokens:
                    continue

                def objective(micro: MicroBatch, counts: GlobalCounts = counts) -> torch.Tensor:
                    fields = micro.fields
                    values = self._values(micro).float()
                    return self.loss(
                        values,
                        fields["values"],
                        fields["returns"],
                        action_mask=fields["trained"],
                        **counts.loss_kwargs(),
                    )

                summed = self.runner.accumulate(self.engine, self.optimizer, part, FIELDS, objective, last=True)
                norm = self.runner.apply(self.engine, self.optimizer, lr)
                if math.isfinite(norm):
                    losses.append(counts.unscale(summed))
                    norms.append(norm)
                else:
                    skipped += 1
        means = {"critic_loss": float(np.mean(losses)), "critic_grad_norm": float(np.mean(norms))} if norms else {}
        return {**means, "critic_lr": lr, "critic_skipped": float(skipped)}

    def export(self, directory: Path, *, rank: int) -> None:
        """Write a directory that transformers' AutoModelForSequenceClassification loads with one label.

        Raises:
            OSError: On every rank if rank 0's disk is full or fails.
        """
        write_shards(hf_weights(self.engine.module), directory, rank=rank)
        self.hf_config.num_labels = 1
        source = self.cfg.critic.model_name_or_path or self.cfg.actor.model_name_or_path
        only_on_rank_0(rank, write_model_files, self.hf_config, source, directory)

    def _values(self, micro: MicroBatch) -> torch.Tensor:
        """Return the values of a micro batch, [b, L-1]."""
        return self.engine(micro.sequences, micro.fields["trained"] > 0, micro.attention_mask)
