"""Objectives: micro batch of log-probs -> the loss handed to DeepSpeed. Reinforcement learning and fine-tuning, both by
openrlhf's losses.

Which policy stands in the denominator of PPO's ratio pi / pi_old (actor.pi_old):

    engine      pi_old = mu, the policy that sampled the token, by its recorded log-prob:
                ratio = pi / mu, so clip-higher acts on all that lies between: staleness, engine mismatch, and the
                batch's earlier updates.
    learner     pi_old = pi at the start of the batch (OpenRLHF's, and that of decoupled PPO, arXiv 2110.00641). mu
                enters only by an IS correction:
                loss = w * -min(ratio A, clip(ratio) A),  w = gate(pi_old / mu).

OpenRLHF recomputes log pi_old in a forward pass before training. Where a batch makes one update, the weights during it
are those of its start, and pi_old is the current log-prob, detached: the same number without the pass. Its ratio is
then 1 and clipping inert, which is why it is not the default: on stale data the default's ratio is what PPO's trust
region is about. Where a batch makes several, the pass is made. With algo.kl.use_loss the KL to the reference model is
added, per token that the policy wrote (algorithms/kl.py), at the same scale. Trained environment tokens (env_mask off)
were sampled by nobody: pi_old = mu = pi, detached.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ..algorithms import kl as kls
from ..algorithms.aggregate import GlobalCounts
from ..algorithms.losses import LOSSES, own
from ..algorithms.losses.diagnostics import Tally
from ..algorithms.losses.is_correction import is_weights
from ..config import Config
from .openrlhf_adapter import PolicyModel, SFTLoss, aggregate_loss, policy_loss
from .packing import MicroBatch
from .rows import OLD


class KlInLoss:
    """The KL to the reference model, at weight `coef`: per token of a micro batch whose rows have a field `reference`.
    Gathers kl_ref, the mean of its estimate per token that the policy wrote."""

    FIELD = "reference"

    def __init__(self, cfg: Config, coef: float, device: str) -> None:
        self.cfg, self.coef = cfg.algo.kl, coef
        self.sums = torch.zeros(2, dtype=torch.float64, device=device)

    def __call__(self, log_probs: torch.Tensor, rollout: torch.Tensor, fields: dict[str, torch.Tensor]) -> torch.Tensor:
        """[b, L-1]"""
        own = fields["trained"] * (fields["sampled"] > 0)
        per_token = (
            kls.loss(log_probs, fields[self.FIELD], rollout, self.cfg.estimator, unbiased=self.cfg.unbiased_gradient)
            * own
        )
        self.sums += torch.stack([per_token.detach().sum(dtype=torch.float64), own.sum(dtype=torch.float64)])
        return self.coef * per_token

    def metrics(self) -> dict[str, float]:
        """Call after the ranks have added up `sums`."""
        total, tokens = self.sums.tolist()
        return {"kl_ref": total / max(tokens, 1.0)}


class PolicyObjective:
    """One update's policy loss; `tally` gathers the diagnostics of the micro batches it was called on."""

    def __init__(
        self, cfg: Config, model: PolicyModel, counts: GlobalCounts, tally: Tally, kl: KlInLoss | None = None
    ) -> None:
        self.cfg, self.model, self.counts, self.kl = cfg, model, counts, kl
        self.own = own.load(cfg.actor.policy_loss) if cfg.actor.policy_loss else LOSSES.get(cfg.actor.policy_loss_type)
        self.loss = None if self.own else policy_loss(cfg)
        self.tally = tally

    def __call__(self, micro: MicroBatch) -> torch.Tensor:
        coefficient = self.cfg.actor.entropy_coef or 0.0
        fields = micro.fields
        mask = fields["trained"]
        log_probs, entropy = self.model.score(micro, entropy_grad=coefficient != 0, wanted=mask > 0)
        current = log_probs.detach()
        rollout = torch.where(fields["sampled"] > 0, fields["rollout_logprobs"], current)
        old = self._old(fields, rollout, current)
        scaling = self.counts.loss_kwargs()
        if self.loss is None:
            per_token, outside = self._per_token(log_probs, old, rollout, micro)
            loss = aggregate_loss(
                per_token, mask, token_level_loss=self.cfg.actor.loss_agg_mode != "seq-mean-token-mean", **scaling
            )
        else:
            loss, _, _, _, outside = self.loss(
                log_probs, old, fields["advantages"], action_mask=mask, rollout_log_probs=rollout, **scaling
            )
        if outside is not None:
            tokens = self.cfg.algo.advantage.is_correction_level == "token"
            self.tally.add_gate(outside, mask.sum() if tokens else mask.new_tensor(len(mask)))
        if coefficient:
            loss = loss - coefficient * aggregate_loss(entropy, mask, **scaling)
        if self.cfg.actor.aux_loss_coef:
            assert self.model.aux_loss is not None, "PolicyModel has seen that there is one"
            # a mean over the batch's trained tokens, whatever the loss is a mean over
            by_tokens = replace(self.counts, sum_norm=None).loss_kwargs()
            loss = loss + self.cfg.actor.aux_loss_coef * aggregate_loss(
                self.model.aux_loss.expand_as(mask), mask, **by_tokens
            )
        if self.kl:
            by_token = self.cfg.actor.loss_agg_mode != "seq-mean-token-mean"
            loss = loss + aggregate_loss(
                self.kl(log_probs, rollout, fields), mask, token_level_loss=by_token, **scaling
            )
        log_ratio = (current - rollout) * mask
        ratio = self._ratio(current - old, mask)
        self.tally.add(
            log_ratio=log_ratio,
            ratio=ratio,
            log_probs=current,
            entropy=entropy.detach(),
            fields=fields,
            clip=self.cfg.actor.clip,
        )
        return loss

    def _per_token(
        self, log_probs: torch.Tensor, old: torch.Tensor, rollout: torch.Tensor, micro: MicroBatch
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A loss that is not OpenRLHF's, [b, L-1], and the share of tokens or sequences outside the IS band."""
        assert self.own is not None, "it is one or the other"
        mask, settings = micro.fields["trained"], self.cfg.algo.advantage
        inputs = own.LossInputs(
            log_probs,
            old,
            rollout,
            micro.fields["advantages"],
            mask,
            self.cfg.actor.clip,
            self.cfg.actor.policy_loss_options,
        )
        if settings.is_correction_level == "off":
            return self.own(inputs), None
        weights, outside = is_weights(old, rollout, mask, settings)
        return weights * self.own(inputs), outside

    def _old(self, fields: dict[str, torch.Tensor], rollout: torch.Tensor, current: torch.Tensor) -> torch.Tensor:
        if self.cfg.pi_old == "engine":
            return rollout
        return torch.where(fields["sampled"] > 0, fields[OLD], current) if OLD in fields else current

    def _ratio(self, log_ratio: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The ratio that is clipped: per token (ppo), or the sequence's geometric mean (gspo, arXiv 2507.18071)."""
        if self.cfg.actor.policy_loss_type == "gspo":
            log_ratio = ((log_ratio * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)).expand_as(
                log_ratio
            )
        return log_ratio.clamp(-20.0, 20.0).exp()


class SftObjective:
    """Cross entropy, token by token weighted: sum(w_t * -log p_t) / sum(w_t) globally. Field: weights [b, L-1]."""

    def __init__(self, model: PolicyModel, counts: GlobalCounts) -> None:
        self.model, self.counts = model, counts
        self.loss = SFTLoss(token_level_loss=True)

    def __call__(self, micro: MicroBatch) -> torch.Tensor:
        weights = micro.fields["weights"]
        log_probs = self.model.log_probs(micro, weights > 0)
        return self.loss(log_probs, weights, **self.counts.loss_kwargs())
