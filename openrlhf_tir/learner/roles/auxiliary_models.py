"""The models beside the policy, as far as the configured method has them, and what they add to a batch.

    samples -> reference: log ref(y_t)  -> KL in the reward: subtracted from the advantages, as the sum of the
                                           penalties to come
                                        -> KL in the loss:   a field of the row (objective.py)
                                        -> filter.max_base_ppl: samples that the reference finds improbable are masked
            -> critic:    V_t           -> advantages and returns by GAE, from rewards

The models score a batch once, with the weights at its start, as OpenRLHF's experience maker does. The KL in the reward
is that of the learner's policy at that moment, log pi - log ref, which takes a forward pass of the policy: recorded
log-probs may be of older weights, but the gradient should be that of KL(pi || ref).

The reference is the policy that the run started from, frozen, on the same ranks as the policy. It is always loaded from
actor.model_name_or_path and never from a checkpoint, so a resumed run has the reference that it began with. ZeRO-3
partitions its weights over the ranks like the policy's; `ref.offload` keeps them in host memory between forward passes.
Its log-probs come from the same chunked head, with the temperature and truncation of the rollout, like the policy's. So
equal weights give exactly equal log-probs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ...algorithms import kl as kls
from ...algorithms.advantages import Estimator
from ...algorithms.advantages.gae import advantages_and_returns
from ...config import Config
from ..openrlhf_adapter import PolicyModel, ZeroStrategy
from ..packing import Row
from ..passes import MicroBatchRunner
from ..rows import REFERENCE_LOGPROBS, Sample, as_float32, build_row, responses
from .critic import Critic


class AuxiliaryModels:
    """The reference and the critic of one rank; each is None if the method does without. Methods are collective.

    It is falsy if it has neither.
    """

    def __init__(
        self, cfg: Config, strategy: ZeroStrategy, estimator: Estimator, policy: PolicyModel, runner: MicroBatchRunner
    ) -> None:
        """Load the models that the method needs.

        Args:
            cfg: The configuration.
            strategy: Wraps the models in DeepSpeed engines.
            estimator: The advantage estimator.
            policy: The policy that is trained.
            runner: Runs the passes.
        """
        kl = cfg.algo.kl
        self.cfg = cfg
        self.estimator = estimator
        self.policy = policy
        self.runner = runner
        self.reference = strategy.prepare(PolicyModel(cfg, strategy, frozen=True)) if cfg.needs_reference else None
        self.critic = Critic(cfg, strategy, runner) if estimator.critic else None
        self.coef = kls.Coefficient(kl.init_coef, kl.target, kl.horizon or 10_000)
        """The weight of the KL. It is adapted after each batch if algo.kl.target is set."""

    def score_samples(
        self, samples: Sequence[Sample], *, is_part: bool = False
    ) -> tuple[list[Sample], dict[str, float]]:
        """Score a batch before it is trained on.

        Args:
            samples: The samples that this rank owns.
            is_part: True if they are of a part of the batch, which the other parts complete.

        Returns:
            The samples with changed advantages, masks and fields, and the metrics of the global batch.
        """
        scored = list(samples)
        metrics: dict[str, float] = {}
        if self.reference:
            scored, metrics = self._compare_with_reference(self.reference, scored)
            scored = self._mask_improbable(scored, is_part)
            metrics |= self.masked_share(scored)
        if self.critic:
            scored, sums = self._evaluate(self.critic, scored)
            metrics |= value_metrics(self.runner.sum(sums))
        return scored, metrics

    def _compare_with_reference(
        self, reference: PolicyModel, samples: list[Sample]
    ) -> tuple[list[Sample], dict[str, float]]:
        """Score the samples with the reference, and apply the KL to the reward if it is configured.

        Returns:
            The samples, and kl_ref if the KL is in the reward.
        """
        policy_tokens = [s.trained & s.trajectory.is_model for s in samples]
        rows = [
            build_row(s.trajectory, as_float32({"scored": mask}))
            for s, mask in zip(samples, policy_tokens, strict=True)
        ]
        reference_log_probs = responses(samples, self.runner.log_probs(reference, rows, "scored"))
        samples = [
            replace(s, base_ppl=perplexity(log_probs_T, mask))
            for s, log_probs_T, mask in zip(samples, reference_log_probs, policy_tokens, strict=True)
        ]
        if not self.cfg.algo.kl.init_coef:
            return samples, {}
        if self.cfg.algo.kl.use_loss:
            pairs = zip(samples, reference_log_probs, strict=True)
            return [s.with_fields(**{REFERENCE_LOGPROBS: log_probs_T}) for s, log_probs_T in pairs], {}
        policy_log_probs = responses(samples, self.runner.log_probs(self.policy, rows, "scored"))
        # Estimators that compare whole trajectories do not discount, so their penalties are not discounted either
        # (OpenRLHF sets gamma to 1 for them).
        gamma = self.cfg.algo.advantage.gamma if self.estimator.discounts else 1.0
        sums = np.zeros(2)
        penalized = []
        for s, mask, pi, ref in zip(samples, policy_tokens, policy_log_probs, reference_log_probs, strict=True):
            kl = kls.estimate(torch.from_numpy(pi - ref), self.cfg.algo.kl.estimator).double().numpy() * mask
            # With a critic the advantages are still rewards per token, and GAE adds up the penalties to come.
            penalty = -self.coef.value * kl if self.critic else kls.penalty_to_go(kl, mask, self.coef.value, gamma)
            penalized.append(replace(s, advantages=s.advantages + penalty))
            if not s.trajectory.masked:
                sums += (kl.sum(), mask.sum())
        total, tokens = self.runner.sum(sums)
        return penalized, {"kl_ref": float(total / max(tokens, 1.0))}

    def _mask_improbable(self, samples: list[Sample], is_part: bool) -> list[Sample]:
        """Mask the samples whose perplexity under the reference is above filter.max_base_ppl.

        If that left nothing to train in the whole batch, none is masked: an update needs a token. Of a part all may be
        masked, since the other parts are not known here.
        """
        max_perplexity = self.cfg.filter.max_base_ppl
        if max_perplexity is None:
            return samples
        masked = [replace(s, masked=s.masked or s.base_ppl > max_perplexity) for s in samples]
        (left,) = self.runner.sum(np.array([sum(s.counts for s in masked)], np.float64))
        return masked if left or is_part else samples

    def masked_share(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Return masked/improbable: of the samples of all ranks the share that is masked for its perplexity."""
        if self.cfg.filter.max_base_ppl is None:
            return {}
        masked = [s.masked for s in samples if s.trained.any() and not s.trajectory.masked]
        share, counted = self.runner.sum(np.array([sum(masked), len(masked)], np.float64))
        return {"masked/improbable": float(share / max(counted, 1.0))}

    def _evaluate(self, critic: Critic, samples: list[Sample]) -> tuple[list[Sample], np.ndarray]:
        """Replace the samples' rewards by advantages, and add the fields `values` and `returns`.

        Returns:
            The samples, and the sums on this rank that `value_metrics` needs.
        """
        advantage = self.cfg.algo.advantage
        sums = np.zeros(6)
        evaluated = []
        rows = [build_row(s.trajectory, as_float32({"trained": s.trained})) for s in samples]
        for s, values in zip(samples, responses(samples, critic.values(rows)), strict=True):
            advantages, returns = advantages_and_returns(
                s.advantages, values, s.trained, advantage.gamma, advantage.lambd
            )
            evaluated.append(replace(s, advantages=advantages).with_fields(values=values, returns=returns))
            if not s.trajectory.masked:
                v = values[s.trained].astype(np.float64)
                r = returns[s.trained]
                sums += (len(v), v.sum(), np.square(v).sum(), r.sum(), np.square(r).sum(), np.square(r - v).sum())
        return evaluated, sums

    def __bool__(self) -> bool:
        return self.reference is not None or self.critic is not None

    @property
    def freezing_steps(self) -> int:
        """Below this version only the critic is trained."""
        return self.cfg.critic.freezing_steps if self.critic else 0

    def update(
        self,
        parts: Sequence[Sequence[Row]],
        batch_metrics: dict[str, float],
        trajectories: int,
        version: int,
    ) -> dict[str, float]:
        """Train the critic and adapt the KL's coefficient. Call it after the policy's updates.

        Args:
            parts: For each update of the critic, the rows that this rank has of it.
            batch_metrics: The metrics of the batch so far; kl_ref in it drives the coefficient.
            trajectories: Number of trajectories of the batch on all ranks.
            version: The learner's version before the batch.

        Returns:
            Further metrics.
        """
        metrics: dict[str, float] = {}
        if self.critic:
            metrics |= self.critic.train(parts, version)
        if self.reference and self.cfg.algo.kl.init_coef:
            metrics["kl_coef"] = self.coef.value
            if "kl_ref" in batch_metrics:
                self.coef.update(batch_metrics["kl_ref"], trajectories)
        return metrics

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores in addition to the critic's engine."""
        return {"kl_coef": self.coef.value}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned. A coefficient that does not adapt keeps the configured value."""
        if self.coef.target is not None:
            self.coef.value = state.get("kl_coef", self.coef.value)

    def engines(self) -> dict[str, Any]:
        """Return the DeepSpeed engines that a checkpoint contains, by the name of their directory."""
        return {"critic": self.critic.engine} if self.critic else {}

    def destroy(self) -> None:
        """Free the DeepSpeed engines."""
        if self.reference:
            self.reference.model.destroy()
        if self.critic:
            self.critic.engine.destroy()


def perplexity(log_probs: np.ndarray, mask: np.ndarray) -> float:
    """Return exp of the mean of -log p over the tokens in `mask`, [T] each; 1.0 if there are none."""
    tokens = int(mask.sum())
    return float(np.exp(-(log_probs.astype(np.float64) * mask).sum() / tokens)) if tokens else 1.0


def value_metrics(sums: np.ndarray) -> dict[str, float]:
    """Return the critic's statistics over trained tokens, before its update.

    These are value_mean, value_std, return_mean, return_std, and

        explained_variance = 1 - Var(R - V) / Var(R)

    which is 1 if V predicts every return R, and 0 if it is no better than their mean. It is left out if all returns are
    equal, and everything is left out if there is no trained token.

    Args:
        sums: [6], added up over the ranks: number of tokens, and the sums of V, V^2, R, R^2 and (R - V)^2.
    """
    count, v, vv, r, rr, dd = sums
    if not count:
        return {}
    value_mean = v / count
    return_mean = r / count
    value_var = max(vv / count - value_mean**2, 0.0)
    return_var = max(rr / count - return_mean**2, 0.0)
    metrics = {
        "value_mean": value_mean,
        "value_std": value_var**0.5,
        "return_mean": return_mean,
        "return_std": return_var**0.5,
    }
    if return_var > 1e-12:
        metrics["explained_variance"] = 1.0 - (dd / count - (return_mean - value_mean) ** 2) / return_var
    return {name: float(x) for name, x in metrics.items()}
