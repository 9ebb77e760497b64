"""Run forward and backward passes of one model over the rows of one rank, in the same number on every rank.

ZeRO-3 gathers weights collectively in each pass, so a rank with fewer micro batches than the others runs dummies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ..algorithms.global_counts import GlobalCounts
from ..config import Actor, Config, Critic
from ..machine.host_allocator import give_back_freed
from .host_memory import Trimmer
from .muon import muon_as, set_lr
from .openrlhf_adapter import PolicyModel, ZeroStrategy
from .packing import MicroBatch, Row, collate, plan_packed, plan_padded

Forward = Callable[[MicroBatch], torch.Tensor]
"""Maps a micro batch to a scalar loss to differentiate, or to a number per position [b, L-1]."""


class MicroBatchRunner:
    """Runs a model on rows: `accumulate` and `apply` train it, `score_rows` evaluates it. All methods are collective.

    The models are the policy (`PolicyModel`), or the DeepSpeed engine of the critic.
    """

    def __init__(self, cfg: Config, strategy: ZeroStrategy, before_change: Callable[[], None]) -> None:
        """`before_change`: wait until weights and the optimizer's states may change; called before every step."""
        self.cfg = cfg
        self._before_change = before_change
        self.strategy = strategy
        self.device = strategy.device
        self._trimmer = Trimmer() if self.device == "cpu" else None
        self.seconds: dict[str, float] = {}
        """Seconds of this rank by the name of their metric, until somebody clears them."""

    @contextmanager
    def timed(self, metric: str) -> Iterator[None]:
        """Add the seconds of the block to `seconds`, to the end of what it has started on the GPU."""
        start = time.monotonic()
        yield
        if self.device != "cpu":
            # Passes end in a copy to the host, which has waited already. So only the optimizer's step waits here.
            torch.cuda.synchronize()
        self.seconds[metric] = self.seconds.get(metric, 0.0) + time.monotonic() - start

    def micro_batches(
        self, model: Any, rows: Sequence[Row], names: Mapping[str, type], *, scoring: bool = False
    ) -> Iterator[tuple[list[int], MicroBatch]]:
        """Yield each micro batch: the indices of its rows, and its tensors with the fields `names`.

        Every rank yields the same number; the last of some may be dummies without rows.

        Args:
            model: The model that computes them. The policy may compute a prompt once for the rows that begin with it.
            rows: The rows of this rank.
            names: The fields to put into the micro batches, with their numpy types.
            scoring: The passes have no gradients, so that more tokens may fit (rollout.micro_batch_size,
                rollout.max_tokens_per_gpu).
        """
        share_prompts = isinstance(model, PolicyModel) and model.can_share_prompts
        max_rows = self.cfg.train.micro_batch_size
        max_tokens = self.cfg.train.max_tokens_per_gpu
        if scoring:
            max_rows = self.cfg.rollout.micro_batch_size or max_rows
            max_tokens = self.cfg.rollout.max_tokens_per_gpu or max_tokens
        max_tokens *= self.cfg.ds.ring_attn_size
        packed = self.cfg.ds.packing_samples
        if packed:
            planned = plan_packed(rows, max_tokens=max_tokens, share_prompts=share_prompts)
        else:
            planned = plan_padded([len(row.token_ids) for row in rows], max_rows=max_rows, max_tokens=max_tokens)
        planned = planned or [[]]  # the optimizer's step needs a pass, also if no rank has rows
        largest_number = torch.tensor(len(planned), device=self.device)
        dist.all_reduce(largest_number, dist.ReduceOp.MAX)
        for indices in planned + [[]] * (int(largest_number) - len(planned)):
            chosen = [rows[i] for i in indices]
            yield indices, collate(chosen, names, self.device, packed=packed, share_prompts=share_prompts)

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
        """Run forward and backward of all micro batches and accumulate the gradient.

        Args:
            model: The policy, or the critic's engine.
            optimizer: Its optimizer.
            rows: The rows of this rank.
            names: The fields that `objective` needs, with their numpy types.
            objective: Returns the scalar loss of a micro batch.
            last: True if the optimizer's step comes next. DeepSpeed takes a step only after a backward pass that was
                marked as the last one.

        Returns:
            The sum of the losses over micro batches and ranks.
        """
        with self.timed("passes_s"):
            engine, optim = self._engine_and_settings(model)
            model.train()
            summed = torch.zeros(1, dtype=torch.float64, device=self.device)
            batches = list(self.micro_batches(model, rows, names))
            with muon_as(optim, self.device):
                for number, (_, micro) in enumerate(batches):
                    engine.set_gradient_accumulation_boundary(last and number == len(batches) - 1)
                    loss = objective(micro)
                    if self._trimmer is not None:
                        self._trimmer.trim()  # all activations exist now: a rank's peak
                    self.strategy.backward(loss, model, optimizer)
                    summed += loss.detach()
            return self.strategy.sum_over_rows(summed).item()

    def apply(self, model: Any, optimizer: torch.optim.Optimizer, lr: float) -> float:
        """Take the optimizer's step at learning rate `lr`, and return the gradient's norm before clipping."""
        _, optim = self._engine_and_settings(model)
        self._before_change()
        with self.timed("optimizer_s"):
            if self.device == "cpu":
                # Otherwise the memory that the passes freed would stay with glibc, beside what the optimizer allocates.
                give_back_freed()
            with muon_as(optim, self.device):
                set_lr(optimizer, lr, optim)
                self.strategy.optimizer_step(optimizer, model, None)
        return self.strategy.get_grad_norm(model)

    def score_rows(
        self, model: torch.nn.Module, rows: Sequence[Row], names: Mapping[str, type], forward: Forward
    ) -> list[np.ndarray]:
        """Return `forward` of every row, [L-1] each, computed without gradients and in evaluation mode.

        Args:
            model: The policy, the reference, or the critic's engine.
            rows: The rows of this rank.
            names: The fields that `forward` needs, with their numpy types.
            forward: Returns a number per position [b, L-1] of a micro batch.
        """
        scores: dict[int, np.ndarray] = {}
        model.eval()
        with torch.no_grad():
            for indices, micro in self.micro_batches(model, rows, names, scoring=True):
                padded = forward(micro).cpu().numpy()
                for place, i in enumerate(indices):
                    scores[i] = padded[place, : len(rows[i].token_ids) - 1].copy()
        return [scores[i] for i in range(len(rows))]

    def log_probs(self, model: PolicyModel, rows: Sequence[Row], mask_field: str) -> list[np.ndarray]:
        """Return log-probs under the distribution that the rollout samples from (its temperature and truncation).

        Args:
            model: The policy or the reference.
            rows: The rows of this rank.
            mask_field: Field of the rows that is not 0 on the tokens to score.

        Returns:
            [L-1] float32 per row; 0.0 on the other tokens.
        """
        return self.score_rows(
            model,
            rows,
            {mask_field: np.float32},
            lambda micro: model.score(micro, wanted=micro.fields[mask_field] > 0)[0].float(),
        )

    def sum(self, local: np.ndarray) -> np.ndarray:
        """Return the elementwise sum over all ranks of what each computed on its rows."""
        return self.strategy.sum_over_rows(torch.from_numpy(local).to(self.device)).cpu().numpy()

    def counts(self, rows: Sequence[Row], weight_field: str) -> GlobalCounts:
        """Return the tokens and sequences of all ranks whose weight is not 0, given the rows of this one."""
        weights = [row.fields[weight_field].sum() for row in rows]
        tokens, sequences = self.sum(np.array([sum(weights), sum(weight > 0 for weight in weights)], np.float64))
        return GlobalCounts(float(tokens), float(sequences), dist.get_world_size())

    def _engine_and_settings(self, model: Any) -> tuple[Any, Actor | Critic]:
        """Return the model's DeepSpeed engine and the settings of its optimizer."""
        if isinstance(model, PolicyModel):
            return model.model, self.cfg.actor
        return model, self.cfg.critic
