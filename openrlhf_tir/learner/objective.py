"""The objectives of reinforcement learning and fine-tuning: from a micro batch's log-probs to the loss for DeepSpeed.

The policy's whole objective, as one formula with its settings, is in algorithms/losses/__init__.py.
Fine-tuning, ppo and gspo use openrlhf's losses, cispo, pg and the user's their own function (algorithms/losses). The
setting actor.pi_old chooses the policy in the denominator of PPO's ratio pi / pi_old:

    engine      pi_old = mu, the policy that sampled the token, by its recorded log-prob. The ratio is pi / mu, so
                clipping covers everything in between: staleness, engine mismatch, and the batch's earlier updates.
    learner     pi_old = pi at the start of the batch, as in OpenRLHF and decoupled PPO (arXiv 2110.00641). mu enters
                only through an importance-sampling (IS) correction.

OpenRLHF always recomputes log pi_old in a forward pass before training. If a batch makes one update, that pass is
unnecessary: the weights during the update are those at the batch's start, so pi_old is the current log-prob, detached.
The ratio is then 1 and clipping has no effect. That is why "learner" is not the default: on stale data the ratio to mu
is what PPO's trust region is about. If a batch makes several updates, the pass is made.

With algo.kl.use_loss the KL to the reference model is added per token that the policy wrote (algorithms/kl.py), with
the same scaling. Environment tokens that are trained (train.env_mask_from) were not sampled by any policy; for
them pi_old = mu = pi, detached.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ..algorithms import kl as kls
from ..algorithms.global_counts import GlobalCounts
from ..algorithms.losses import own
from ..algorithms.losses.base import LossInputs
from ..algorithms.losses.diagnostics import Tally
from ..algorithms.losses.is_correction import importance_weights
from ..config import Config
from .openrlhf_adapter import PolicyModel, SFTLoss, aggregate_loss, policy_loss
from .packing import MicroBatch
from .rows import OLD_LOGPROBS, REFERENCE_LOGPROBS


class PolicyObjective:
    """The policy's loss in one update.

    Calling it on a micro batch returns the loss to differentiate and adds the micro batch's diagnostics to `tally`.
    """

    def __init__(
        self, cfg: Config, model: PolicyModel, counts: GlobalCounts, tally: Tally, kl_coef: float = 0.0
    ) -> None:
        """Choose the loss that is configured.

        Args:
            cfg: The configuration.
            model: The policy.
            counts: The global counts that the loss is divided by.
            tally: Collects the diagnostics.
            kl_coef: Weight of the KL to the reference model, with algo.kl.use_loss.

        Raises:
            ConfigError: The user's loss cannot be loaded.
        """
        self.cfg = cfg
        self.model = model
        self.counts = counts
        self.kl_coef = kl_coef
        self.tally = tally
        registered = cfg.policy_loss
        self.per_token_loss = own.load(cfg.actor.own_loss) if cfg.actor.own_loss else registered.fn
        self.ratio_of_sequence = registered.over_sequences
        self.openrlhf_loss = None if self.per_token_loss else policy_loss(cfg)
        """Used for the losses that OpenRLHF has; `per_token_loss` is None for them."""

    def __call__(self, micro: MicroBatch) -> torch.Tensor:
        """Return the scalar loss of a micro batch, scaled so that DeepSpeed's sums give the global mean.

        Raises:
            MethodBroken: The user's loss failed.
        """
        coefficient = self.cfg.actor.entropy_coef or 0.0
        fields = micro.fields
        mask = fields["trained"]
        log_probs, entropy = self.model.score(micro, entropy_grad=coefficient != 0, wanted=mask > 0)
        current = log_probs.detach()
        rollout = torch.where(fields["sampled"] > 0, fields["rollout_logprobs"], current)
        old = self._old_log_probs(fields, rollout, current)
        scaling = self.counts.loss_kwargs()
        token_level = self.cfg.loss_agg_mode != "seq-mean-token-mean"
        if self.openrlhf_loss is None:
            per_token, outside = self._per_token(log_probs, old, rollout, micro)
            loss = aggregate_loss(per_token, mask, token_level_loss=token_level, **scaling)
        else:
            loss, _, _, _, outside = self.openrlhf_loss(
                log_probs, old, fields["advantages"], action_mask=mask, rollout_log_probs=rollout, **scaling
            )
        if outside is not None:
            by_tokens = self.cfg.algo.advantage.is_correction_level == "token"
            self.tally.add_gate(outside, mask.sum() if by_tokens else mask.new_tensor(len(mask)))
        if coefficient:
            loss = loss - coefficient * aggregate_loss(entropy, mask, **scaling)
        if self.cfg.actor.aux_loss_coef:
            assert self.model.aux_loss is not None, "PolicyModel has checked that the model has one"
            # This term is always a mean over the batch's trained tokens, whatever the policy's loss is a mean over.
            token_mean = replace(self.counts, sum_norm=None).loss_kwargs()
            loss = loss + self.cfg.actor.aux_loss_coef * aggregate_loss(
                self.model.aux_loss.expand_as(mask), mask, **token_mean
            )
        kl = None
        if self.cfg.algo.kl.use_loss:
            kl = self._kl(log_probs, rollout, fields)
            loss = loss + aggregate_loss(self.kl_coef * kl, mask, token_level_loss=token_level, **scaling)
        log_ratio = (current - rollout) * mask
        ratio = self._clipped_ratio(current - old, mask)
        self.tally.add(
            log_ratio=log_ratio,
            ratio=ratio,
            log_probs=current,
            entropy=entropy.detach(),
            fields=fields,
            clip=self.cfg.actor.eps_clip_low_high,
            kl=kl,
        )
        return loss

    def _kl(self, log_probs: torch.Tensor, rollout: torch.Tensor, fields: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the KL to the reference model per token, [b, L-1].

        It is 0 on tokens that are not trained or that the policy did not write.
        """
        kl = self.cfg.algo.kl
        estimate = kls.loss(log_probs, fields[REFERENCE_LOGPROBS], rollout, kl.estimator, unbiased=kl.unbiased_gradient)
        return estimate * (fields["trained"] * (fields["sampled"] > 0))

    def _per_token(
        self, log_probs: torch.Tensor, old: torch.Tensor, rollout: torch.Tensor, micro: MicroBatch
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute a loss that OpenRLHF does not have.

        Returns:
            The loss per token [b, L-1], and the share of tokens or sequences outside the band of the IS correction;
            None without a correction.
        """
        assert self.per_token_loss is not None, "there is either a per-token loss or OpenRLHF's"
        mask = micro.fields["trained"]
        settings = self.cfg.algo.advantage
        inputs = LossInputs(
            log_probs,
            old,
            rollout,
            micro.fields["advantages"],
            mask,
            self.cfg.actor.eps_clip_low_high,
            self.cfg.actor.policy_loss_options,
        )
        if settings.is_correction_level == "off":
            return self.per_token_loss(inputs), None
        weights, outside = importance_weights(
            old,
            rollout,
            mask,
            level=settings.is_correction_level,
            mode=settings.is_correction_mode,
            gating=settings.is_correction_gating,
            threshold=settings.is_correction_threshold,
        )
        return weights * self.per_token_loss(inputs), outside

    def _old_log_probs(
        self, fields: dict[str, torch.Tensor], rollout: torch.Tensor, current: torch.Tensor
    ) -> torch.Tensor:
        """Return log pi_old [b, L-1]; see the module's docstring."""
        if self.cfg.pi_old == "engine":
            return rollout
        if OLD_LOGPROBS not in fields:
            return current
        return torch.where(fields["sampled"] > 0, fields[OLD_LOGPROBS], current)

    def _clipped_ratio(self, log_ratio: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the ratio that the loss clips, for the diagnostics.

        It is the token's ratio, or the geometric mean of the sequence's ratios for a loss over sequences.
        """
        if self.ratio_of_sequence:
            mean = (log_ratio * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
            log_ratio = mean.expand_as(log_ratio)
        return log_ratio.clamp(-20.0, 20.0).exp()


class SftObjective:
    """Weighted cross entropy: sum(w_t * -log p_t) / sum(w_t), with both sums over the global batch.

    The weights are the field "weights" [b, L-1].
    """

    def __init__(self, model: PolicyModel, counts: GlobalCounts) -> None:
        self.model = model
        self.counts = counts
        self.loss = SFTLoss(token_level_loss=True)

    def __call__(self, micro: MicroBatch) -> torch.Tensor:
        weights = micro.fields["weights"]
        log_probs = self.model.log_probs(micro, weights > 0)
        return self.loss(log_probs, weights, **self.counts.loss_kwargs())
