"""Critic: V(prefix) of every trained token, on the policy's ranks, with a DeepSpeed engine, optimiser and schedule of
its own.

    values     rows -> [L-1] per row, entry t of the prefix that ends before token t+1, without gradients
    train      rows with values and returns -> critic.epochs passes over the parts of the batch
               (minibatches.critic_parts), one optimiser step on each

    loss = 0.5 * mean over trained tokens of max((V - R)^2, (clip(V, V_old +- value_clip) - R)^2)

(PPO's clipped value loss.)

A part is of the whole batch, and its mean over the tokens of all ranks: any number of them takes the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from ...algorithms.aggregate import GlobalCounts
from ...config import Config
from ..export import write_model_files
from ..lora import hf_weights
from ..openrlhf_adapter import ValueLoss, ZeroStrategy, value_model
from ..packing import MicroBatch, Row
from ..passes import Passes
from ..schedule import critic_schedule
from ..weight_shards import write_shards

FIELDS: dict[str, type] = {"trained": np.float32, "values": np.float32, "returns": np.float32}


class Critic:
    def __init__(self, cfg: Config, strategy: ZeroStrategy) -> None:
        self.cfg, self.strategy, self.lr_at = cfg, strategy, critic_schedule(cfg)
        model = value_model(cfg, strategy)
        self.hf_config = model.config
        self.engine, self.optimizer = strategy.prepare_training(model, cfg, cfg.critic)
        self.loss = ValueLoss(cfg.critic.value_clip, token_level_loss=cfg.actor.loss_agg_mode != "seq-mean-token-mean")

    def values(self, passes: Passes, rows: Sequence[Row]) -> list[np.ndarray]:
        """[L-1] float32 per row; 0.0 where its field `trained` is 0."""
        return passes.ask(self.engine, rows, {"trained": np.float32}, self._values)

    def train(
        self,
        passes: Passes,
        parts: Sequence[Sequence[Row]],
        version: int,
        counted: Callable[[Sequence[Row]], GlobalCounts],
    ) -> dict[str, float]:
        """parts: what this rank has of each update's rows. Returns critic_loss and critic_grad_norm, means over the
        updates, and critic_skipped: those whose gradient was not finite, which changed nothing."""
        lr, losses, norms, skipped = self.lr_at(version), [], [], 0
        for _ in range(self.cfg.critic.epochs or self.cfg.train.max_epochs):
            for part in parts:
                counts = counted(part)
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

                summed = passes.accumulate(self.engine, self.optimizer, part, FIELDS, objective, last=True)
                passes.apply(self.engine, self.optimizer, lr)
                norm = self.strategy.get_grad_norm(self.engine)
                if math.isfinite(norm):
                    losses.append(counts.unscale(summed))
                    norms.append(norm)
                else:
                    skipped += 1
        means = {"critic_loss": float(np.mean(losses)), "critic_grad_norm": float(np.mean(norms))} if norms else {}
        return {**means, "critic_lr": lr, "critic_skipped": float(skipped)}

    def export(self, directory: Path, *, rank: int) -> OSError | None:
        """A directory that transformers' AutoModelForSequenceClassification loads with one label. Returns what rank 0's
        disk refused of its small files."""
        sharded = self.cfg.ds.zero_stage == 3
        write_shards(
            hf_weights(self.engine.module),
            directory,
            rank=rank,
            sharded=sharded,
            max_bytes=self.cfg.ckpt.max_shard_bytes,
        )
        if rank == 0:
            self.hf_config.num_labels = 1
            try:
                write_model_files(
                    self.hf_config, self.cfg.critic.model_name_or_path or self.cfg.actor.model_name_or_path, directory
                )
            except OSError as e:
                return e
        return None

    def destroy(self) -> None:
        self.engine.destroy()

    def _values(self, micro: MicroBatch) -> torch.Tensor:
        return self.engine(micro.sequences, micro.fields["trained"] > 0, micro.attention_mask)
