"""What a loss is divided by, so that its mean is over the global batch. No other place knows the scaling.

We want the gradient of one mean over the whole batch, however it is cut into ranks and micro batches:

    L = 1/N * sum over ranks r, micro batches m, tokens t of mask_t * l_t
    N = trained tokens of all ranks (token-mean)

DeepSpeed does two things to what we hand to backward(loss_rm): it adds them up over m, and averages the gradient over
the dp_size ranks. So

    gradient = 1/dp_size * sum_r sum_m grad(loss_rm)
    loss_rm  = dp_size / N * sum_t mask_t * l_t                      makes gradient = grad(L).

OpenRLHF's aggregate_loss computes sum_t mask_t * l_t / batch_num_tokens * dp_size, hence batch_num_tokens = N. The same
holds for "seq-mean-token-mean" with sequence means in place of tokens and the number of trained sequences for N. And
"seq-mean-token-sum-norm" (Dr. GRPO, arXiv 2503.20783: a sequence's sum over a constant c instead of its own length) is
token-mean with N = sequences * c. A rank's mean over *its own* tokens would be wrong whenever ranks or micro batches
hold different numbers of tokens, which with tool calls is always. DeepSpeed also divides each loss by its configured
gradient_accumulation_steps, which is 1 here: as the number of micro batches changes from step to step,
learner/passes.py tells it where the last one is.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GlobalCounts:
    """What a global mean divides by.

    Attributes:
        tokens: Trained tokens of all ranks, or the sum of their weights.
        sequences: Sequences of all ranks with a trained token.
        dp_size: Number of data-parallel ranks.
        sum_norm: The constant c above; None unless the mode is "seq-mean-token-sum-norm".
    """

    tokens: float
    sequences: float
    dp_size: int
    sum_norm: float | None = None

    def loss_kwargs(self) -> dict[str, float]:
        """Return the scaling arguments of OpenRLHF's PolicyLoss, SFTLoss and aggregate_loss."""
        divisor = self.sum_norm * self.sequences if self.sum_norm else self.tokens
        return {
            "dp_size": self.dp_size,
            # The floors are for a batch without a trained token: 0 / 1e-8 = 0.
            "batch_num_tokens": max(divisor, 1e-8),
            "global_batch_size": max(self.sequences, 1.0),
        }

    def unscale(self, summed_loss: float) -> float:
        """Return the global mean, which is reported as `loss`.

        Args:
            summed_loss: Sum of loss_rm over all ranks and micro batches.
        """
        return summed_loss / self.dp_size
