"""Which groups are trained."""

from __future__ import annotations

from pydantic import Field, model_validator

from .base import Option, Section


class Filter(Section):
    """Which groups are worth training on. Each drop is counted by its reason."""

    names: list[str] | None = Field(
        None,
        description=(
            "filters in the order in which they are asked, registered or one's own; empty: none; unset: accuracy, and"
            " those that the settings below switch on. accuracy looks at what is correct, reward at rewards"
            " (filter.reward_range): with it, groups that are all right are kept"
        ),
    )
    sample: str | None = Field(
        None,
        description=(
            "which samples of a kept group are not trained, though their group counts them;"
            " registered: over_length, zerotir"
        ),
    )
    max_base_ppl: float | None = Field(
        None,
        gt=1,
        description=(
            "mask samples whose perplexity under the policy that the run started from is larger, over the tokens that"
            " the policy wrote (ZeroTIR: 5); loads that model as the reference model; unset: none is masked for it"
        ),
    )
    options: dict[str, Option] = Field(
        default_factory=dict, description="what filters of one's own are told, as their second argument"
    )
    reward_range: tuple[float, float] | None = Field(
        None, description="filter 'reward': keep iff lo < mean reward < hi, both strict, any numbers"
    )
    max_verifier_failures: float = Field(
        0.4, ge=0, le=1, description="filter 'verifiers': drop groups of which a larger share has no verdict"
    )
    accuracy_range: tuple[float, float] = Field(
        (0.0, 1.0), description="filter 'accuracy': keep iff lo < mean accuracy < hi, both strict"
    )
    zero_variance: bool = Field(True, description="drop groups whose rewards are all equal: their advantage is zero")
    max_length_gap: float | None = Field(
        None, gt=0, description="drop iff |mean length correct - mean length wrong| reaches it (tokens)"
    )
    max_truncated: float = Field(
        1.0, ge=0, le=1, description="drop groups of which a larger share hit the length limit"
    )

    @property
    def order(self) -> list[str]:
        """The filters that are asked. Unset, accuracy comes first: "all right" says more than "all equal"."""
        if self.names is not None:
            return self.names
        wanted = {
            "zero_variance": self.zero_variance,
            "length_gap": self.max_length_gap is not None,
            "truncated": self.max_truncated < 1,
        }
        return ["accuracy", *(name for name, on in wanted.items() if on)]

    @model_validator(mode="after")
    def _named_filters_have_what_they_need(self) -> Filter:
        for name, setting in (("reward", "reward_range"), ("length_gap", "max_length_gap")):
            if name in self.order and getattr(self, setting) is None:
                raise ValueError(
                    f"filter.names has {name!r}, which needs filter.{setting}, and that is unset."
                    f" Set it, or leave {name!r} out."
                )
        if self.reward_range and not self.reward_range[0] < self.reward_range[1]:
            raise ValueError(f"filter.reward_range = {self.reward_range} is empty. Use lo < hi.")
        if len(set(self.order)) < len(self.order):
            raise ValueError(f"filter.names = {self.order} names a filter twice. Name each once.")
        return self
