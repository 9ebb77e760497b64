"""Advantages and KL."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from .base import Option, Section


class Advantage(Section):
    estimator: str = Field(
        "reinforce_baseline",
        description=(
            "registered, or one's own; reinforce_baseline is REINFORCE++-baseline:"
            " reward minus group mean, whitened over the batch's trained tokens"
        ),
    )
    options: dict[str, Option] = Field(
        default_factory=dict, description="what an estimator of one's own is told, as AdvantageInputs.options"
    )
    credit: Literal["trajectory", "turn"] = Field(
        "trajectory",
        description=(
            "'turn': a turn's advantage is that of what was earned from it on, compared with the same turns of its"
            " group; the rewards of calls say how much (reward 'env', added up)"
        ),
    )
    no_std_norm: bool = Field(False, description="keep the scale of the advantages: centre them only")
    gamma: float = Field(1.0, gt=0, le=1)
    lambd: float = Field(1.0, ge=0, le=1, description="GAE's lambda: 1 trusts returns, 0 the critic")
    is_correction_level: Literal["off", "token", "seq"] = "off"
    is_correction_mode: Literal["mask", "clip"] = "mask"
    is_correction_gating: Literal["ratio", "binary_kl", "tv"] = "ratio"
    is_correction_threshold: tuple[float, ...] = Field(
        (0.5, 5.0), min_length=1, max_length=2, description="low and high bound; one value: high only"
    )

    @model_validator(mode="after")
    def _correction_fits(self) -> Advantage:
        """OpenRLHF's PolicyLoss refuses the same, but in the first learner step."""
        if self.is_correction_level == "off":
            return self
        if self.is_correction_mode == "clip" and (
            self.is_correction_level == "seq" or self.is_correction_gating != "ratio"
        ):
            raise ValueError(
                "algo.advantage.is_correction_mode = 'clip' clamps a per-token ratio: it needs is_correction_level ="
                " 'token' and is_correction_gating = 'ratio'. Use mode = 'mask' for the others."
            )
        if (
            self.is_correction_gating != "ratio"
            and len(self.is_correction_threshold) == 2
            and self.is_correction_threshold[0] > 0
        ):
            raise ValueError(
                f"algo.advantage.is_correction_gating = '{self.is_correction_gating}' has an upper bound only, and the"
                f" threshold is {self.is_correction_threshold}. Give one value, e.g. 0.02."
            )
        bounds, gating = self.is_correction_threshold, self.is_correction_gating
        said = f"algo.advantage.is_correction_threshold = {bounds} with is_correction_gating = '{gating}'"
        low, high = bounds if len(bounds) == 2 else (0.0, bounds[0])
        if gating == "ratio" and not (low <= 1 <= high and low < high):
            raise ValueError(
                f"{said} is no band around 1, the ratio where both policies agree: just those tokens would be left out"
                " or cut. Use low <= 1 <= high, e.g. 0.5 5.0; divergences have gatings of their own, binary_kl and tv."
            )
        if gating != "ratio" and high <= 0:
            raise ValueError(f"{said} leaves out whatever differs at all. Use a value above 0, e.g. 0.02.")
        if gating == "tv" and high >= 1:
            raise ValueError(
                f"{said} is never reached: two probabilities differ by less than 1. Lower it, e.g. to 0.1."
            )
        return self


class Kl(Section):
    """KL to the reference model, over the tokens that the policy wrote (docs/algorithms.md)."""

    init_coef: float = Field(
        0.0,
        ge=0,
        description="weight of the KL to the policy that the run started from; 0: no reference model is loaded",
    )
    use_loss: bool = Field(
        False, description="in the policy's loss; False: subtracted from the rewards, token by token"
    )
    estimator: Literal["k1", "k2", "k3"] = Field(
        "k1", description="per token, of l = log pi - log ref: l, l^2 / 2, or exp(-l) - 1 + l"
    )
    unbiased_gradient: bool = Field(
        True,
        description=(
            "of the loss form: the gradient of KL(pi || ref), whatever the estimator;"
            " False: through its formula (GRPO's papers)"
        ),
    )
    target: float | None = Field(
        None, gt=0, description="the coefficient follows this KL per token; unset: it stays at init_coef"
    )
    horizon: int | None = Field(None, ge=1, description="samples over which it does; unset: 10000")


class Algo(Section):
    advantage: Advantage = Field(default_factory=Advantage)
    kl: Kl = Field(default_factory=Kl)
