"""Truncation: which tokens top-k, top-p and min-p leave to be sampled. Scaled logits [c, V] -> mask [c, V].

The policy that samples is then the softmax over the tokens that are left. Its log-probs are what vLLM records
(processed_logprobs), and the learner computes the same from its own logits, so that ratios start at 1 and the gradient
is that of the policy that samples. The set is that of the weights at hand: it moves with them, and where it moves the
policy jumps, of which no gradient knows. The token that was sampled always counts as left, also where newer weights, or
an engine in another precision, would have cut it: its log-prob is finite whatever happened since.

The order is vLLM's: min-p on the scaled softmax, top-k, then top-p on what is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ..config import Config


@dataclass(frozen=True, slots=True)
class Truncation:
    """top_k 0, top_p 1 and min_p 0 leave everything."""

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @classmethod
    def of(cls, cfg: Config) -> Truncation | None:
        """As the rollout samples; None when it cuts nothing."""
        made = cls(cfg.rollout.top_k, cfg.rollout.top_p, cfg.rollout.min_p)
        return None if made == cls() else made

    def cut(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """[c, V] bool, True: left out. `logits` [c, V] are divided by the temperature; `targets` [c] int64 stay."""
        out = torch.zeros_like(logits, dtype=torch.bool)
        if self.min_p > 0:
            out |= logits < logits.amax(-1, keepdim=True) + torch.tensor(self.min_p, dtype=logits.dtype).log()
        if 0 < self.top_k < logits.shape[-1]:
            left = logits.masked_fill(out, -torch.inf)
            out |= left < left.topk(self.top_k, dim=-1).values[:, -1:]
        if self.top_p < 1:
            left = logits.masked_fill(out, -torch.inf)
            ranked = left.sort(dim=-1, descending=True).values
            probs = ranked.softmax(-1)
            before = probs.cumsum(-1) - probs  # the token that crosses top_p is left
            least = ranked.masked_fill(before >= self.top_p, torch.inf).amin(-1, keepdim=True)
            out |= left < least
        return out.scatter_(-1, targets[:, None], False)
