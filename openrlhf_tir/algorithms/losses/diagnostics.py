"""Diagnostics of a policy update: sums over trained tokens that add up over micro batches and ranks, and the metrics
made of them.

With l = log pi - log mu (pi: the learner's weights, mu: the policy that sampled the token) and n sampled tokens:

    kl_rollout         1/n sum(exp(l) - 1 - l)                      k3 estimate of KL(mu || pi), never negative
    ess                (sum exp(l))^2 / (n sum exp(l)^2)            1 on-policy; small: few tokens carry the update
    clip_low/high      share of trained tokens whose gradient PPO cuts: ratio < 1 - eps_low with A < 0; ratio > 1 +
                       eps_high with A > 0
    log_ratio_abs_max  max |l|, whatever the lag; log_ratio_abs_p50, _p95, _p99: percentiles of |l| over sampled tokens,
                       to 12 %
    nll_model          mean of -log pi over the trained tokens that the policy sampled
    nll_env            the same over trained tokens of tool output, where those are trained: how well the policy
                       foretells its environment

l is split by lag, the learner's version minus that of the weights that sampled the token. Where lag = 0 pi and mu are
the same weights, so what is left of l is the *engine mismatch* (dtype, kernels); where lag > 0 the *version lag* comes
on top of it:

    mismatch_max, mismatch_mean_abs, mismatch_kl       max |l|, mean |l| and mean k3 where lag = 0
    lag_mean_abs, lag_kl, lag_share                    mean |l| and mean k3 where lag > 0; its share of sampled tokens

and a half without tokens is left out. With an IS correction, is_filtered is the share of tokens (or sequences) outside
its band.

Only tokens the policy sampled enter these; environment tokens that are trained (train.env_mask_from) count in
entropy and trained_tokens."""

from __future__ import annotations

import torch

SUMS = (
    *(
        "trained", "sampled", "lagging", "entropy", "abs_advantage", "clip_low", "clip_high", "weight", "weight_sq",
        "lag",
    ),
    *("k3", "lag_k3", "abs_ratio", "lag_abs_ratio", "nll_model", "nll_env"),
)  # fmt: skip
MAXIMA = ("log_ratio_abs_max", "mismatch_max", "staleness_max")
PER_DECADE, SMALLEST, DECADES = 20, 1e-7, 9
"""The bins of the histogram of |l|: 1e-7 to 100 in steps of 12 %; what is below is in the first bin."""
PERCENTILES = (50, 95, 99)


class Tally:
    """Collects one step's sums [len(SUMS)] float64 and maxima [len(MAXIMA)] float64 on `device`."""

    def __init__(self, device: str) -> None:
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
        self.maxima = torch.zeros(len(MAXIMA), dtype=torch.float64, device=device)
        self.gated = torch.zeros(2, dtype=torch.float64, device=device)
        """Units (tokens or sequences) outside the IS correction's band, and all that it looked at."""
        self.distances = torch.zeros(PER_DECADE * DECADES, dtype=torch.float64, device=device)
        """Sampled tokens by |l|."""

    def add(
        self,
        *,
        log_ratio: torch.Tensor,
        ratio: torch.Tensor,
        log_probs: torch.Tensor,
        entropy: torch.Tensor,
        fields: dict[str, torch.Tensor],
        clip: tuple[float, float],
    ) -> None:
        """All [b, L-1]. log_ratio: l above, 0 where not sampled; ratio: PPO's, whose denominator may be another policy;
        log_probs: of pi."""
        with torch.no_grad():
            trained = fields["trained"] > 0
            sampled = trained & (fields["sampled"] > 0)
            lag, adv = fields["lag"], fields["advantages"]
            late = sampled & (lag > 0)
            weight = log_ratio.double().exp()
            k3 = weight - 1 - log_ratio
            terms = {
                "trained": trained,
                "sampled": sampled,
                "lagging": late,
                "entropy": entropy * trained,
                "abs_advantage": adv.abs() * trained,
                "clip_low": sampled & (ratio < 1 - clip[0]) & (adv < 0),
                "clip_high": sampled & (ratio > 1 + clip[1]) & (adv > 0),
                "k3": k3 * sampled,
                "lag_k3": k3 * late,
                "weight": weight * sampled,
                "weight_sq": weight.square() * sampled,
                "lag": lag * sampled,
                "abs_ratio": log_ratio.abs() * sampled,
                "lag_abs_ratio": log_ratio.abs() * late,
                "nll_model": -log_probs * sampled,
                "nll_env": -log_probs * (trained & ~sampled),
            }
            self.sums += torch.stack([terms[name].sum(dtype=torch.float64) for name in SUMS])
            distance = log_ratio.abs() * sampled
            maxima = torch.stack(
                [distance.max(), (distance * (lag == 0)).max(), (lag * sampled).max().to(distance.dtype)]
            )
            self.maxima = torch.maximum(self.maxima, maxima.double())
            decades = (distance[sampled].double().clamp(min=SMALLEST) / SMALLEST).log10()
            # NaN, which the norm of the gradient tells, is no integer
            bins = (decades * PER_DECADE).long().clamp(0, len(self.distances) - 1)
            self.distances += torch.bincount(bins, minlength=len(self.distances))

    def add_gate(self, outside: torch.Tensor, units: torch.Tensor) -> None:
        """`outside`: the share of a micro batch's `units` that the IS correction masked or clipped."""
        share = outside.double() * units
        # of a dummy, without a token, it is 0 / 0
        self.gated += torch.stack([torch.where(units > 0, share, torch.zeros_like(share)), units.double()])

    def metrics(self) -> dict[str, float]:
        """Call after the ranks have summed `sums` and `gated` and maximised `maxima`."""
        s = dict(zip(SUMS, self.sums.tolist(), strict=True))
        per_trained, per_sampled = max(s["trained"], 1.0), max(s["sampled"], 1.0)
        return {
            "trained_tokens": s["trained"],
            "entropy": s["entropy"] / per_trained,
            "advantage_abs_mean": s["abs_advantage"] / per_trained,
            "clip_low": s["clip_low"] / per_trained,
            "clip_high": s["clip_high"] / per_trained,
            "kl_rollout": s["k3"] / per_sampled,
            "ess": s["weight"] ** 2 / (per_sampled * s["weight_sq"]) if s["weight_sq"] else 1.0,
            "staleness_mean": s["lag"] / per_sampled,
            "lag_share": s["lagging"] / per_sampled,
            **dict(zip(MAXIMA, self.maxima.tolist(), strict=True)),
            **self._percentiles(),
            **self._split(s),
        }

    def _percentiles(self) -> dict[str, float]:
        """The upper edge of the bin that each is in."""
        below = self.distances.cumsum(0)
        if not below[-1]:
            return {}
        bins = [int((below < q / 100 * below[-1]).sum()) for q in PERCENTILES]
        return {
            f"log_ratio_abs_p{q}": SMALLEST * 10 ** ((b + 1) / PER_DECADE)
            for q, b in zip(PERCENTILES, bins, strict=True)
        }

    def _split(self, s: dict[str, float]) -> dict[str, float]:
        out: dict[str, float] = {"nll_model": s["nll_model"] / max(s["sampled"], 1.0)}
        if of_env := s["trained"] - s["sampled"]:
            out["nll_env"] = s["nll_env"] / of_env
        if fresh := s["sampled"] - s["lagging"]:
            out |= {
                "mismatch_mean_abs": (s["abs_ratio"] - s["lag_abs_ratio"]) / fresh,
                "mismatch_kl": (s["k3"] - s["lag_k3"]) / fresh,
            }
        if s["lagging"]:
            out |= {"lag_mean_abs": s["lag_abs_ratio"] / s["lagging"], "lag_kl": s["lag_k3"] / s["lagging"]}
        if units := self.gated[1].item():
            out["is_filtered"] = self.gated[0].item() / units
        return out
