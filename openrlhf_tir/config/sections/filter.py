"""Which groups are trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import model_validator

from ..setting import About, Condition, Fault, rule, setting
from .base import Option, Section
from .conditions import is_user_code

if TYPE_CHECKING:
    from ..schema import Config


def _unless_left_out(name: str) -> Condition:
    """Return the condition of a setting that switches filter `name` on by itself while filter.names is unset."""
    return Condition(
        f"if filter.names is unset or has '{name}'", lambda c: c.filter.names is None or name in c.filter.names
    )


def _if_named(name: str) -> Condition:
    """Return the condition of a setting of a filter that must be named."""
    return Condition(f"if filter.names has '{name}'", lambda c: name in c.filter.order)


def _has_user_filter(c: Config) -> bool:
    return any(is_user_code(name) for name in (*c.filter.order, c.filter.sample or ""))


OPTION_OF = {"length_gap": "max_length_gap", "truncated": "max_truncated"}
"""Registered filter -> the option of filter.options that it needs."""


class Filter(Section):
    """Which groups are worth training on. Each drop is counted by its reason."""

    names: list[str] | None = setting(
        None,
        description=(
            "Filters in the order in which they are called: registered names or your own functions. Empty, and"
            " 'none' as a flag: no filter."
            " Unset: accuracy, zero_variance (groups whose rewards are all equal: their advantages are zero), and those"
            " that filter.options switches on. accuracy looks at what is correct, reward"
            " at the rewards (filter.reward_range), so that it keeps groups that are all right."
        ),
        short="which groups are trained",
        names="user_code",
    )
    sample: str | None = setting(
        None,
        description=(
            "Filter that masks samples of a kept group: they are not trained, though their group counts them."
            " Registered: over_length, zerotir."
        ),
        names="user_code",
    )
    max_base_ppl: float | None = setting(
        None,
        gt=1,
        description=(
            "Mask samples whose perplexity under the policy that the run started from is larger, over the tokens that"
            " the policy wrote (ZeroTIR: 5). Loads that model as the reference model. Unset: none is masked for it."
        ),
    )
    options: dict[str, Option] = setting(
        default_factory=dict,
        description=(
            "Options of the filters. max_length_gap, tokens: 'length_gap' drops a group if |mean length of right"
            " responses - mean length of wrong ones| reaches it. max_truncated: 'truncated' drops a group if a larger"
            " share of it hit the length limit. Each switches its filter on where filter.names is unset. Your own"
            " filters receive the options as their second argument."
        ),
        active_when=Condition(
            "with options of a filter that is called (filter.names, filter.sample)",
            # Options of no filter are refused by a rule.
            lambda c: (
                _has_user_filter(c)
                or not c.filter.options.keys() <= {*OPTION_OF.values()}
                or any(OPTION_OF.get(name) in c.filter.options for name in c.filter.order)
            ),
        ),
    )
    reward_range: tuple[float, float] | None = setting(
        None,
        description="Filter 'reward': keep a group if low < mean reward < high.",
        active_when=_if_named("reward"),
    )
    accuracy_range: tuple[float, float] = setting(
        (0.0, 1.0),
        description="Filter 'accuracy': keep a group if low < mean accuracy < high.",
        active_when=_unless_left_out("accuracy"),
    )

    @property
    def order(self) -> list[str]:
        """The filters that are called. Unset, accuracy comes first: "all right" says more than "all equal"."""
        if self.names is not None:
            return self.names
        return ["accuracy", "zero_variance", *(name for name, option in OPTION_OF.items() if option in self.options)]

    def limit_of(self, name: str) -> float:
        """Return the option that a registered filter of OPTION_OF needs."""
        limit = self.options[OPTION_OF[name]]
        assert isinstance(limit, int | float), "the validator below lets nothing else pass"
        return limit

    @model_validator(mode="after")
    def _named_filters_have_what_they_need(self) -> Filter:
        if "reward" in self.order and self.reward_range is None:
            raise ValueError(
                "filter.names has 'reward', which needs filter.reward_range, and that is unset. Set it, or leave"
                " 'reward' out."
            )
        for name, option in OPTION_OF.items():
            if name not in self.order:
                continue
            limit = self.options.get(option)
            is_share = name == "truncated"
            is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
            if not is_number or not (0 <= self.limit_of(name) <= 1 if is_share else self.limit_of(name) > 0):
                needed = "a share from 0 to 1" if is_share else "a number of tokens above 0"
                raise ValueError(
                    f"Filter {name!r} needs option {option}, {needed}, and filter.options has {limit!r}. Set it, or"
                    f" leave {name!r} out of filter.names."
                )
        if self.reward_range and not self.reward_range[0] < self.reward_range[1]:
            raise ValueError(f"filter.reward_range = {self.reward_range} is empty. Use low < high.")
        if len(set(self.order)) < len(self.order):
            raise ValueError(f"filter.names = {self.order} names a filter twice. Name each once.")
        return self


@rule("filter.options")
def options_are_those_of_a_filter(c: Config) -> Iterator[Fault]:
    filters_with: dict[str, list[Filter]] = {}
    for name, environment in c.resolved_environments.items():
        has_its_own = name in c.envs and c.envs[name].filter.options is not None
        setting_name = f"{environment.prefix if has_its_own else ''}filter.options"
        filters_with.setdefault(setting_name, []).append(environment.filter)
    for setting_name, filters in filters_with.items():
        called = {name for own in filters for name in (*own.order, own.sample or "")}
        unknown = filters[0].options.keys() - OPTION_OF.values()
        if unknown and not any(map(is_user_code, called)):
            yield About(
                setting_name,
                f"{setting_name} has {min(unknown)!r}, and only filters of your own have other options than"
                f" {' and '.join(OPTION_OF.values())}. Correct it, or name your filter in"
                f" {setting_name.removesuffix('options')}names.",
            )


@rule("filter.names")
def filters_go_with_the_reward(c: Config) -> Iterator[Fault]:
    for environment in c.resolved_environments.values():
        prefix = environment.prefix
        filters = environment.filter
        rewards = [*environment.reward.used]
        low, high = filters.accuracy_range
        if not 0 <= low < high <= 1:
            yield About(
                f"{prefix}filter.accuracy_range",
                f"{prefix}filter.accuracy_range = ({low}, {high}) is not a range within 0..1. Use low < high, e.g."
                " [0.0, 1.0].",
            )
        named = [(f"{prefix}filter.sample", filters.sample), *((f"{prefix}filter.names", n) for n in filters.order)]
        for setting_name, name in named:
            if name in ("zerotir", "verifiers") and "zerotir" not in rewards:
                yield About(
                    setting_name,
                    f"{setting_name} has {name!r}, which reads what reward.name = 'zerotir' records, and the reward is"
                    f" {', '.join(rewards)}. Leave it out.",
                )
        if c.rollout.early_stop and "accuracy" not in filters.order:
            yield About(
                f"{prefix}filter.names",
                f"rollout.early_stop ends groups that filter 'accuracy' is sure to drop, and {prefix}filter.names ="
                f" {filters.order} has none. Change one of them.",
            )
