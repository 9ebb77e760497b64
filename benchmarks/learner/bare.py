"""A bare PyTorch loop on the same micro batches: the same model with the same attention, logits, log_softmax, PPO's
clip, gradients summed over the ranks in one all-reduce, clipped, AdamW. Every rank holds all weights; there is no
DeepSpeed, no chunked head, and no metric but the norm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from openrlhf_tir.learner.attention.packed import SDPA_PACKED
from openrlhf_tir.learner.packing import Row, first_fit
from openrlhf_tir.learner.rows import batch_samples, local_moments, share, to_rows
from openrlhf_tir.learner.zero3 import Zero3Rank
from openrlhf_tir.types import Group, TrainBatch


class Bare:
    def __init__(self, learner: Zero3Rank) -> None:
        """`learner`: whose rows and settings are taken."""
        self.learner, self.cfg = learner, learner.cfg
        actor = self.cfg.actor
        self.model = AutoModelForCausalLM.from_pretrained(
            actor.model_name_or_path, dtype=torch.float32, attn_implementation=SDPA_PACKED
        )
        self.model.config.use_cache = False
        self.model.train()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=actor.learning_rate,
            betas=actor.adam_betas,
            eps=actor.adam_eps,
            weight_decay=actor.l2,
        )

    def prepare(self, batch: TrainBatch, groups: Sequence[Group]) -> None:
        rows = rows_of(self.learner, batch, groups)
        tokens = torch.tensor(sum(row.fields["trained"].sum() for row in rows), dtype=torch.float64)
        dist.all_reduce(tokens)
        self.tokens = tokens.item()
        planned = first_fit([len(row.token_ids) for row in rows], self.cfg.train.max_tokens_per_gpu)
        self.passes = [packed([rows[i] for i in indices]) for indices in planned]

    def step(self) -> float:
        low, high = self.cfg.actor.eps_clip_low_high
        for ids, positions, fields in self.passes:
            log_probs = (
                self.model(ids, position_ids=positions)
                .logits[0, :-1]
                .log_softmax(-1)
                .gather(-1, ids[0, 1:, None])
                .squeeze(-1)
            )
            ratio = (log_probs - fields["rollout_logprobs"]).exp()
            advantages = fields["advantages"]
            per_token = -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
            ((per_token * fields["trained"]).sum() / self.tokens).backward()
        grads = [p.grad for p in self.model.parameters()]
        flat = torch.cat([g.flatten() for g in grads])
        dist.all_reduce(flat)
        for g, summed in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            g.copy_(summed.view_as(g))
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.actor.max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm.item()


def rows_of(learner: Zero3Rank, batch: TrainBatch, groups: Sequence[Group]) -> list[Row]:
    """What `learner` would train of the batch, with its advantages; collective."""
    samples = batch_samples(batch, groups, learner.cfg, learner.estimator)
    mine = share(samples, batch.rank_of, learner.rank)
    total = torch.from_numpy(local_moments(mine))
    dist.all_reduce(total)
    return to_rows(mine, total.numpy(), 0, learner.cfg, learner.estimator)


def packed(rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """ids and positions [1, T]; fields [T - 1]: of each row [L - 1], and 0 where the next row begins."""
    ids = np.concatenate([row.token_ids for row in rows]).astype(np.int64)
    positions = np.concatenate([np.arange(len(row.token_ids)) for row in rows])
    fields = {
        name: torch.from_numpy(np.concatenate([np.append(row.fields[name], np.float32(0)) for row in rows])[:-1])
        for name in ("trained", "advantages", "rollout_logprobs")
    }
    return torch.from_numpy(ids)[None], torch.from_numpy(positions)[None], fields
