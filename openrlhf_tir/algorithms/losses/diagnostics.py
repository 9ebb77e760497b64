"""Diagnostics of a policy update.

The learner calls, in this order:

    Tally(device)              empty sums, at the start of a step
    add, add_gate              once per micro batch: add the micro batch's tokens, on this rank
    (learner/zero3.py)         adds up `sums`, `gated` and `histogram` over the ranks and takes the maximum of `maxima`
    metrics                    the step's metrics, equal on every rank

Only totals are kept until the end. A mean of the means of micro batches or ranks would weigh their tokens unequally.

With pi the learner's weights, mu the policy that sampled a token and l = log pi - log mu, over n sampled tokens:

    kl_rollout          1/n sum(exp(l) - 1 - l)               k3 estimate of KL(mu || pi), never negative
    ess                 (sum exp(l))^2 / (n sum exp(l)^2)     effective sample size: 1 on-policy; small if few tokens
                                                              carry the update
    log_ratio_abs_max   max |l|
    log_ratio_abs_p50, _p95, _p99                             percentiles of |l|, at most 12 % too high
    staleness_mean, staleness_max                             mean and maximum of the lag
    nll_model           1/n sum(-log pi)
    kl_ref              1/n sum(KL to the reference model), with algo.kl.use_loss

The lag is the learner's version minus the version that sampled the token. Where it is 0, pi and mu are the same
weights, so what is left of l is *engine mismatch* (dtype, kernels). Where it is positive, *version lag* comes on top:

    mismatch_max, mismatch_mean_abs, mismatch_kl              max |l|, mean |l| and mean k3 over tokens with lag 0
    lag_mean_abs, lag_kl                                      mean |l| and mean k3 over tokens with a positive lag
    lag_share                                                 share of sampled tokens with a positive lag

Over the trained tokens, which are the sampled ones and, with train.env_mask_from, tool output:

    trained_tokens      their number
    entropy             mean entropy of pi
    advantage_abs_mean  mean |A|
    clip_low, clip_high share of tokens whose gradient PPO cuts: sampled, and ratio < 1 - eps_low with A < 0, or
                        ratio > 1 + eps_high with A > 0
    nll_env             mean -log pi over trained tool output: how well the policy predicts its environment

is_filtered is the share of tokens (or sequences) outside the band of the importance-sampling correction.

A metric over a subset that has no token is left out: mismatch_mean_abs and mismatch_kl, lag_mean_abs and lag_kl,
nll_env, is_filtered and the percentiles.
"""

from __future__ import annotations

import torch

SUMS = (
    # Numbers of tokens.
    "trained",
    "sampled",
    "lagging",  # sampled, with a positive lag
    "clip_low",
    "clip_high",
    # Over trained tokens.
    "entropy",
    "abs_advantage",
    # Over sampled tokens.
    "lag",
    "weight",  # exp(l)
    "weight_sq",
    "k3",
    "abs_ratio",  # |l|
    "nll_model",
    "kl",  # to the reference model
    # Over lagging tokens.
    "lag_k3",
    "lag_abs_ratio",
    # Over trained tokens that were not sampled.
    "nll_env",
)
"""What `Tally.sums` holds, in this order."""
MAXIMA = ("log_ratio_abs_max", "mismatch_max", "staleness_max")
"""What `Tally.maxima` holds, in this order; the names of the metrics."""
SMALLEST_BIN = 1e-7
"""Lower edge of the histogram of |l|. A smaller |l| is in the first bin."""
DECADES = 9
"""Powers of ten that the histogram spans, so that it ends at 100. A larger |l| is in the last bin."""
BINS_PER_DECADE = 20
"""A bin's upper edge is 10^(1/20) times its lower edge: 12 % more."""
PERCENTILES = (50, 95, 99)
"""Percentiles of |l| that are metrics."""


class Tally:
    """Totals over the tokens of one step. All tensors are float64, on the learner's device.

    Attributes:
        sums: [len(SUMS)].
        maxima: [len(MAXIMA)].
        gated: [2], the units (tokens or sequences) outside the band of the importance-sampling correction, and all
            units that the correction saw.
        histogram: [DECADES * BINS_PER_DECADE], the number of sampled tokens in each bin of |l|.
        has_kl: True if the loss has a KL to the reference model.
    """

    def __init__(self, device: str) -> None:
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
        self.maxima = torch.zeros(len(MAXIMA), dtype=torch.float64, device=device)
        self.gated = torch.zeros(2, dtype=torch.float64, device=device)
        self.histogram = torch.zeros(DECADES * BINS_PER_DECADE, dtype=torch.float64, device=device)
        self.has_kl = False

    def add(
        self,
        *,
        log_ratio: torch.Tensor,
        ratio: torch.Tensor,
        log_probs: torch.Tensor,
        entropy: torch.Tensor,
        fields: dict[str, torch.Tensor],
        clip: tuple[float, float],
        kl: torch.Tensor | None = None,
    ) -> None:
        """Add the tokens of a micro batch. All tensors are [b, L-1].

        Args:
            log_ratio: l of the module's docstring; 0 on tokens that are not trained or were not sampled.
            ratio: The ratio that the loss clips. Its denominator may be another policy than mu (actor.pi_old).
            log_probs: log pi.
            entropy: Entropy of pi, in nats.
            fields: "trained" and "sampled", positive where a token is; "lag", int32, in versions; "advantages".
            clip: eps_low and eps_high.
            kl: The KL to the reference model, 0 on tokens that are not trained or were not sampled; None without one.
        """
        self.has_kl = kl is not None
        with torch.no_grad():
            trained = fields["trained"] > 0
            sampled = trained & (fields["sampled"] > 0)
            lag = fields["lag"]
            lagging = sampled & (lag > 0)
            advantages = fields["advantages"]
            abs_log_ratio = log_ratio.abs() * sampled
            weight = log_ratio.double().exp()
            k3 = weight - 1 - log_ratio
            terms = {
                "trained": trained,
                "sampled": sampled,
                "lagging": lagging,
                "clip_low": sampled & (ratio < 1 - clip[0]) & (advantages < 0),
                "clip_high": sampled & (ratio > 1 + clip[1]) & (advantages > 0),
                "entropy": entropy * trained,
                "abs_advantage": advantages.abs() * trained,
                "lag": lag * sampled,
                "weight": weight * sampled,
                "weight_sq": weight.square() * sampled,
                "k3": k3 * sampled,
                "abs_ratio": abs_log_ratio,
                "nll_model": -log_probs * sampled,
                "kl": torch.zeros_like(entropy) if kl is None else kl,
                "lag_k3": k3 * lagging,
                "lag_abs_ratio": abs_log_ratio * lagging,
                "nll_env": -log_probs * (trained & ~sampled),
            }
            self.sums += torch.stack([terms[name].sum(dtype=torch.float64) for name in SUMS])
            largest = {
                "log_ratio_abs_max": abs_log_ratio,
                "mismatch_max": abs_log_ratio * (lag == 0),
                "staleness_max": lag * sampled,
            }
            self.maxima = torch.maximum(self.maxima, torch.stack([largest[name].max().double() for name in MAXIMA]))
            self._add_to_histogram(abs_log_ratio[sampled].double())

    def _add_to_histogram(self, values: torch.Tensor) -> None:
        """Count |l| of sampled tokens, [n] float64."""
        decades = (values.clamp(min=SMALLEST_BIN) / SMALLEST_BIN).log10()
        # NaN becomes an arbitrary integer here; clamp keeps it within the bins. The gradient norm shows the NaN.
        bins = (decades * BINS_PER_DECADE).long().clamp(0, len(self.histogram) - 1)
        self.histogram += torch.bincount(bins, minlength=len(self.histogram))

    def add_gate(self, outside: torch.Tensor, units: torch.Tensor) -> None:
        """Add what the importance-sampling correction masked or clipped in a micro batch.

        Args:
            outside: Scalar, the share of the micro batch's units (tokens or sequences) that is outside the band.
            units: Scalar, the number of units.
        """
        number_outside = outside.double() * units
        # A dummy micro batch has no token, so that its share is 0 / 0.
        number_outside = torch.where(units > 0, number_outside, torch.zeros_like(number_outside))
        self.gated += torch.stack([number_outside, units.double()])

    def metrics(self) -> dict[str, float]:
        """Return the metrics. Call it after the totals were combined over the ranks."""
        sums = dict(zip(SUMS, self.sums.tolist(), strict=True))
        maxima = dict(zip(MAXIMA, self.maxima.tolist(), strict=True))
        # Without a token the sums are 0, and so are the means.
        trained = max(sums["trained"], 1.0)
        sampled = max(sums["sampled"], 1.0)
        return {
            "trained_tokens": sums["trained"],
            "entropy": sums["entropy"] / trained,
            "advantage_abs_mean": sums["abs_advantage"] / trained,
            "clip_low": sums["clip_low"] / trained,
            "clip_high": sums["clip_high"] / trained,
            "kl_rollout": sums["k3"] / sampled,
            "ess": sums["weight"] ** 2 / (sampled * sums["weight_sq"]) if sums["weight_sq"] else 1.0,
            "staleness_mean": sums["lag"] / sampled,
            "lag_share": sums["lagging"] / sampled,
            **maxima,
            **self._percentiles(),
            "nll_model": sums["nll_model"] / sampled,
            **({"kl_ref": sums["kl"] / sampled} if self.has_kl else {}),
            **_means_of_subsets(sums),
            **self._gated_share(),
        }

    def _percentiles(self) -> dict[str, float]:
        """Return percentiles of |l|, each as the upper edge of its bin. Empty without a sampled token."""
        cumulative = self.histogram.cumsum(0)
        total = cumulative[-1]
        if not total:
            return {}
        percentiles = {}
        for percent in PERCENTILES:
            # The percentile is in the first bin at which the cumulative number reaches this share of the tokens.
            index = int((cumulative < percent / 100 * total).sum())
            percentiles[f"log_ratio_abs_p{percent}"] = SMALLEST_BIN * 10 ** ((index + 1) / BINS_PER_DECADE)
        return percentiles

    def _gated_share(self) -> dict[str, float]:
        """Return is_filtered. Empty without an importance-sampling correction."""
        outside, units = self.gated.tolist()
        return {"is_filtered": outside / units} if units else {}


def _means_of_subsets(sums: dict[str, float]) -> dict[str, float]:
    """Return the means over trained tool output, over tokens without lag and over tokens with it."""
    metrics = {}
    tool_output = sums["trained"] - sums["sampled"]
    if tool_output:
        metrics["nll_env"] = sums["nll_env"] / tool_output
    without_lag = sums["sampled"] - sums["lagging"]
    if without_lag:
        metrics["mismatch_mean_abs"] = (sums["abs_ratio"] - sums["lag_abs_ratio"]) / without_lag
        metrics["mismatch_kl"] = (sums["k3"] - sums["lag_k3"]) / without_lag
    if sums["lagging"]:
        metrics["lag_mean_abs"] = sums["lag_abs_ratio"] / sums["lagging"]
        metrics["lag_kl"] = sums["lag_k3"] / sums["lagging"]
    return metrics
