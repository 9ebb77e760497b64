"""What a policy loss receives and returns, and the properties that it declares. Nothing here imports torch.

Shapes: b sequences of a micro batch, L-1 positions of a padded sequence; entry t is about token t+1. A sequence is a
trajectory, or one branch of a trajectory that has several. So a mean over sequences counts each branch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What a policy loss receives. All tensors are [b, L-1] float32.

    Attributes:
        log_probs: Of the learner's weights. The only tensor that takes a gradient.
        old_log_probs: Of pi_old, the policy that actor.pi_old names. A ratio divides by it, and an importance-sampling
            correction weighs by pi_old / mu.
        rollout_log_probs: Of mu, the policy that sampled. For a token of the environment, of the learner's weights.
        advantages: Advantage of each token, 0.0 where not trained.
        mask: 1.0 for a token that is trained, else 0.0.
        clip: (low, high) of actor.eps_clip_low_high.
        options: The value of actor.policy_loss_options.
    """

    log_probs: torch.Tensor
    old_log_probs: torch.Tensor
    rollout_log_probs: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor
    clip: tuple[float, float]
    options: Mapping[str, Any] = field(default_factory=dict)


LossFn = Callable[[LossInputs], "torch.Tensor"]
"""Returns the loss of each token [b, L-1], not reduced. The learner takes the mean."""
Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
"""The values of actor.loss_agg_mode."""
MAX_SEQUENCE_CLIP = 0.1
"""A clip range from here on is too wide for ratios of sequences, which are means of logs."""


@dataclass(frozen=True, slots=True)
class PolicyLossSpec:
    """A registered policy loss and its properties. Settings, their checks and the learner read the properties here.

    Attributes:
        fn: The function; None if OpenRLHF's PolicyLoss computes it (learner/openrlhf_adapter.py), with actor.dual_clip.
        summary: What it is, in a few words for help and reference page.
        source: Where its formula is from.
        clips: What actor.eps_clip_low_high limits by the ratio pi / pi_old: the update, so that a token whose ratio has
            left the range has no gradient; or the weight of the gradient. None if the loss has no ratio.
        over_sequences: True if that ratio is the geometric mean over a sequence and the loss a mean over sequences, so
            that all tokens of a sequence are trained by the mean of their advantages, and actor.loss_agg_mode has no
            effect.
        is_corrected: True if an importance-sampling correction weighs its tokens (is_correction.py).
    """

    fn: LossFn | None
    summary: str
    source: str
    clips: Literal["update", "weight"] | None = "update"
    over_sequences: bool = False
    is_corrected: bool = True

    @property
    def has_ratio(self) -> bool:
        """True if it has a ratio pi / pi_old."""
        return self.clips is not None

    @property
    def has_dual_clip(self) -> bool:
        """True if actor.dual_clip bounds it. OpenRLHF's losses have that, ours do not."""
        return self.fn is None
