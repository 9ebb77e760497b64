"""Roles: the models beside the policy, as far as the method has them, and what they say of a batch before it is trained
on.

    samples -> reference: log ref(y_t)  -> KL in the reward: advantages, minus the penalties to come
                                           KL in the loss:   a field of the row (objective.py)
                                           filter.max_base_ppl: improbable samples are masked
            -> critic:    V_t           -> rewards to advantages and returns by GAE

All of it is asked once per batch, of the weights at its start, as OpenRLHF's experience maker does. The KL of the
reward is that of the learner's policy then, log pi - log ref, which costs a forward pass: the recorded log-probs may be
of older weights, and its gradient is to be that of KL(pi || ref)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ...algorithms import kl as kls
from ...algorithms.advantages import Estimator
from ...algorithms.aggregate import GlobalCounts
from ...algorithms.gae import gae
from ...config import Config
from ...config.effects.rows import GROUP_ESTIMATORS
from ..openrlhf_adapter import PolicyModel, ZeroStrategy
from ..packing import Row
from ..passes import Passes
from ..rows import Sample, as_float32, laid_out
from .critic import Critic
from .reference import Reference, log_probs

Sum = Callable[[np.ndarray], np.ndarray]
"""Adds up over the ranks, element by element."""


class Roles:
    def __init__(self, cfg: Config, strategy: ZeroStrategy, estimator: Estimator) -> None:
        kl = cfg.algo.kl
        self.cfg = cfg
        self.reference = Reference(cfg, strategy) if cfg.needs_reference else None
        self.critic = Critic(cfg, strategy) if estimator.critic else None
        self.coef = kls.Coefficient(kl.init_coef, kl.target, kl.horizon or 10_000)

    def judged(
        self, samples: Sequence[Sample], policy: PolicyModel, passes: Passes, sum_over_ranks: Sum
    ) -> tuple[list[Sample], dict[str, float]]:
        """The samples with what the roles say of them, and the metrics of the global batch."""
        judged, metrics = list(samples), {}
        if self.reference:
            judged, kl = self._compared(self.reference, judged, policy, passes)
            if self.cfg.filter.max_base_ppl is not None:
                judged, share = _without_improbable(judged, self.cfg.filter.max_base_ppl, sum_over_ranks)
                metrics["masked/improbable"] = share
            if kl is not None:
                total, tokens = sum_over_ranks(np.array(kl))
                metrics["kl_ref"] = float(total / max(tokens, 1.0))
        if self.critic:
            judged, sums = self._valued(self.critic, judged, passes)
            metrics |= value_metrics(sum_over_ranks(sums))
        return judged, metrics

    def _compared(
        self, reference: Reference, samples: list[Sample], policy: PolicyModel, passes: Passes
    ) -> tuple[list[Sample], tuple[float, float] | None]:
        own = [s.trained & s.trajectory.is_model for s in samples]
        rows = [laid_out(s.trajectory, as_float32({"asked": mask})) for s, mask in zip(samples, own, strict=True)]
        of_reference = _responses(samples, reference.log_probs(passes, rows))
        samples = [
            replace(s, base_ppl=perplexity(r, mask)) for s, r, mask in zip(samples, of_reference, own, strict=True)
        ]
        if not self.cfg.algo.kl.init_coef:
            return samples, None
        if self.cfg.algo.kl.use_loss:
            pairs = zip(samples, of_reference, strict=True)
            return [replace(s, facts={**s.facts, "reference": r}) for s, r in pairs], None
        of_policy = _responses(samples, log_probs(policy, passes, rows))
        # what compares whole trajectories discounts nothing, penalties neither (OpenRLHF sets gamma to 1)
        adv = self.cfg.algo.advantage
        gamma, total, tokens, judged = 1.0 if adv.estimator in GROUP_ESTIMATORS else adv.gamma, 0.0, 0, []
        for s, mask, pi, ref in zip(samples, own, of_policy, of_reference, strict=True):
            kl = kls.estimate(torch.from_numpy(pi - ref), self.cfg.algo.kl.estimator).double().numpy() * mask
            penalty = -self.coef.value * kl if self.critic else kls.penalty_to_go(kl, mask, self.coef.value, gamma)
            judged.append(replace(s, advantages=s.advantages + penalty))
            if not s.trajectory.masked:
                total, tokens = total + kl.sum(), tokens + mask.sum()
        return judged, (total, tokens)

    def _valued(self, critic: Critic, samples: list[Sample], passes: Passes) -> tuple[list[Sample], np.ndarray]:
        adv, sums, judged = self.cfg.algo.advantage, np.zeros(6), []
        rows = [laid_out(s.trajectory, as_float32({"trained": s.trained})) for s in samples]
        for s, values in zip(samples, _responses(samples, critic.values(passes, rows)), strict=True):
            advantages, returns = gae(s.advantages, values, s.trained, adv.gamma, adv.lambd)
            judged.append(replace(s, advantages=advantages, facts={**s.facts, "values": values, "returns": returns}))
            if not s.trajectory.masked:
                v, r = values[s.trained].astype(np.float64), returns[s.trained]
                sums += (len(v), v.sum(), np.square(v).sum(), r.sum(), np.square(r).sum(), np.square(r - v).sum())
        return judged, sums

    def __bool__(self) -> bool:
        return self.reference is not None or self.critic is not None

    @property
    def freezing_steps(self) -> int:
        """Versions below it train the critic alone."""
        return self.cfg.critic.freezing_steps if self.critic else 0

    def trained(
        self,
        parts: Sequence[Sequence[Row]],
        told: dict[str, float],
        samples: int,
        version: int,
        passes: Passes,
        counted: Callable[[Sequence[Row]], GlobalCounts],
    ) -> dict[str, float]:
        """After the policy's updates: those of the critic, one on each of `parts`, and of the KL's coefficient. told:
        the batch's metrics so far.
        Returns metrics."""
        metrics: dict[str, float] = {}
        if self.critic:
            metrics |= self.critic.train(passes, parts, version, counted)
        if self.reference and self.cfg.algo.kl.init_coef:
            metrics["kl_coef"] = self.coef.value
            if "kl_ref" in told:
                self.coef.update(told["kl_ref"], samples)
        return metrics

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps besides the critic's engine."""
        return {"kl_coef": self.coef.value}

    def restore(self, state: dict[str, Any]) -> None:
        if self.coef.target is not None:  # a fixed one is what the configuration says now
            self.coef.value = state.get("kl_coef", self.coef.value)

    def engines(self) -> dict[str, Any]:
        """Those whose state a checkpoint holds."""
        return {"critic": self.critic.engine} if self.critic else {}

    def destroy(self) -> None:
        for role in (self.reference, self.critic):
            if role:
                role.destroy()


def perplexity(log_probs: np.ndarray, mask: np.ndarray) -> float:
    """Return exp of the mean of -log p over the masked-in tokens; 1.0 without any."""
    tokens = int(mask.sum())
    return float(np.exp(-(log_probs.astype(np.float64) * mask).sum() / tokens)) if tokens else 1.0


def _without_improbable(samples: Sequence[Sample], most: float, sum_over_ranks: Sum) -> tuple[list[Sample], float]:
    """Return the samples with those above the perplexity `most` masked, and the share of these among all that counted.

    Where nothing would be left to train in the whole batch none is masked: an update needs a token.
    """
    improbable = [s.counts and s.base_ppl > most for s in samples]
    masked, counted = sum_over_ranks(np.array([float(sum(improbable)), float(sum(s.counts for s in samples))]))
    if masked == counted:
        return list(samples), 0.0
    pairs = zip(samples, improbable, strict=True)
    return [replace(s, masked=s.masked or drop) for s, drop in pairs], float(masked / counted)


def _responses(samples: Sequence[Sample], per_row: Sequence[np.ndarray]) -> list[np.ndarray]:
    """[L-1] per row -> [T] per response."""
    return [of_row[len(s.trajectory.prompt_ids) - 1 :] for s, of_row in zip(samples, per_row, strict=True)]


def value_metrics(sums: np.ndarray) -> dict[str, float]:
    """Figures of the critic before its update, over trained tokens: value_mean, value_std, return_mean, return_std, and

    explained_variance = 1 - Var(R - V) / Var(R)

    1: it foretells every return; 0: no better than their mean; left out where they are all equal."""
    count, v, vv, r, rr, dd = sums
    if not count:
        return {}
    value, ret = v / count, r / count
    value_var, return_var = max(vv / count - value**2, 0.0), max(rr / count - ret**2, 0.0)
    out = {"value_mean": value, "value_std": value_var**0.5, "return_mean": ret, "return_std": return_var**0.5}
    if return_var > 1e-12:
        out["explained_variance"] = 1.0 - (dd / count - (ret - value) ** 2) / return_var
    return {name: float(x) for name, x in out.items()}
