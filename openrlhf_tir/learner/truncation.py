"""Decide which tokens top-k, top-p and min-p exclude from sampling, on the learner's own logits.

The sampling policy is the softmax over the tokens that are not excluded. vLLM records its log-probs
(processed_logprobs), and the learner computes the same distribution from its own logits. So ratios start at 1, and the
gradient is that of the policy that samples. The set of tokens depends on the current weights; where it changes, the
policy jumps, and no gradient shows that.

The token that was sampled always counts as included, even if newer weights, or an engine of another precision, would
exclude it: its log-prob stays finite in any case.

The order is vLLM's: min-p on the softmax of the scaled logits, then top-k, then top-p on what is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ..config import Config


@dataclass(frozen=True, slots=True)
class Truncation:
    """The settings. top_k = 0, top_p = 1 and min_p = 0 exclude nothing."""

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @classmethod
    def of(cls, cfg: Config) -> Truncation | None:
        """Return the truncation with which the rollout samples; None if it excludes nothing."""
        configured = cls(cfg.rollout.top_k, cfg.rollout.top_p, cfg.rollout.min_p)
        return None if configured == cls() else configured

    def cut(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return which tokens are excluded.

        Args:
            logits: [c, V], divided by the temperature.
            targets: [c] int64: the sampled tokens, which are never excluded.

        Returns:
            [c, V] bool, True where a token is excluded.
        """
        excluded = torch.zeros_like(logits, dtype=torch.bool)
        if self.min_p > 0:
            # p < min_p * p_max in terms of logits
            excluded |= logits < logits.amax(-1, keepdim=True) + torch.tensor(self.min_p, dtype=logits.dtype).log()
        if 0 < self.top_k < logits.shape[-1]:
            remaining = logits.masked_fill(excluded, -torch.inf)
            excluded |= remaining < remaining.topk(self.top_k, dim=-1).values[:, -1:]
        if self.top_p < 1:
            remaining = logits.masked_fill(excluded, -torch.inf)
            ranked = remaining.sort(dim=-1, descending=True).values
            probs = ranked.softmax(-1)
            # The mass before a token decides, so the token with which the sum crosses top_p is included.
            mass_before = probs.cumsum(-1) - probs
            smallest = ranked.masked_fill(mass_before >= self.top_p, torch.inf).amin(-1, keepdim=True)
            excluded |= remaining < smallest
        return excluded.scatter_(-1, targets[:, None], False)
