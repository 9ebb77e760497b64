"""Passes: rows of one rank -> forward and backward passes of one model, the same number on every rank.

ZeRO-3 gathers weights collectively in each pass, so ranks with fewer micro batches run dummies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ..config import Actor, Config, Critic
from .host_memory import give_back_freed
from .openrlhf_adapter import PolicyModel, ZeroStrategy
from .optim.muon import muon_as, set_lr
from .packing import MicroBatch, Row, collate, plan, plan_shared

Forward = Callable[[MicroBatch], torch.Tensor]
"""A micro batch -> a scalar loss to be differentiated, or a figure per position [b, L-1]."""


class Passes:
    def __init__(self, cfg: Config, strategy: ZeroStrategy) -> None:
        self.cfg, self.strategy, self.device = cfg, strategy, strategy.device

    def micro_batches(
        self, rows: Sequence[Row], names: Mapping[str, type], *, asking: bool = False, share_prompts: bool = False
    ) -> Iterator[tuple[list[int], MicroBatch]]:
        """Yield each micro batch: the indices of its rows, and its tensors with the fields `names`.

        Args:
            asking: The passes are without gradients, so that more tokens may fit.
            share_prompts: Rows with the same prompt compute it once.
        """
        train, rollout = self.cfg.train, self.cfg.rollout
        max_rows = train.micro_batch_size
        max_tokens = train.max_tokens_per_gpu
        if asking:
            max_rows = rollout.micro_batch_size or max_rows
            max_tokens = rollout.max_tokens_per_gpu or max_tokens
        max_tokens *= self.cfg.ds.ring_attn_size
        if share_prompts:
            planned = plan_shared(rows, max_tokens=max_tokens)
        else:
            lengths = [len(row.token_ids) for row in rows]
            planned = plan(lengths, max_rows=max_rows, max_tokens=max_tokens, packed=self.cfg.ds.packing_samples)
        most = torch.tensor(len(planned), device=self.device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        for indices in planned + [[]] * (int(most) - len(planned)):
            yield indices, collate([rows[i] for i in indices], names, self.device, share_prompts=share_prompts)

    def accumulate(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer,
        rows: Sequence[Row],
        names: Mapping[str, type],
        objective: Forward,
        *,
        last: bool,
    ) -> float:
        """Forward and backward of all micro batches; `last`: nothing more comes before the optimiser's step, which
        DeepSpeed takes only after a pass that was told so. Returns the sum of the losses over micro batches and
        ranks."""
        engine, optim = self._of(model)
        model.train()
        summed = torch.zeros(1, dtype=torch.float64, device=self.device)
        shared = isinstance(model, PolicyModel) and model.shares_prompts
        batches = (
            list(self.micro_batches(rows, names, share_prompts=shared))
            or [([], collate([], names, self.device))] * last
        )
        with muon_as(optim, self.device):
            for k, (_, micro) in enumerate(batches):
                engine.set_gradient_accumulation_boundary(last and k == len(batches) - 1)
                loss = objective(micro)
                self.strategy.backward(loss, model, optimizer)
                summed += loss.detach()
        return self.strategy.sum_over_rows(summed).item()

    def apply(self, model: Any, optimizer: torch.optim.Optimizer, lr: float) -> None:
        """The optimiser's step at `lr`, on what was accumulated."""
        _, optim = self._of(model)
        if self.device == "cpu":
            give_back_freed()  # what the passes have freed would lie beside what the optimiser takes
        with muon_as(optim, self.device):
            set_lr(optimizer, lr, optim)
            self.strategy.optimizer_step(optimizer, model, None)

    def _of(self, model: Any) -> tuple[Any, Actor | Critic]:
        """The DeepSpeed engine, and the settings of its optimiser."""
        return (model.model, self.cfg.actor) if isinstance(model, PolicyModel) else (model, self.cfg.critic)

    def ask(
        self, model: torch.nn.Module, rows: Sequence[Row], names: Mapping[str, type], forward: Forward
    ) -> list[np.ndarray]:
        """`forward` of every row [L-1], without gradients, in evaluation mode."""
        found: dict[int, np.ndarray] = {}
        model.eval()
        shared = isinstance(model, PolicyModel) and model.shares_prompts
        with torch.no_grad():
            for indices, micro in self.micro_batches(rows, names, asking=True, share_prompts=shared):
                answer = forward(micro).cpu().numpy()
                found |= {i: answer[k, : len(rows[i].token_ids) - 1].copy() for k, i in enumerate(indices)}
        return [found[i] for i in range(len(rows))]
