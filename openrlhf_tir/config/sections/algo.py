"""Advantages and KL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from ..setting import About, Condition, Fault, rule, setting
from .base import Option, Section
from .conditions import WITH_CRITIC, estimator_of, is_user_code, registered_estimator

if TYPE_CHECKING:
    from ..schema import Config


def _discounts(c: Config) -> bool:
    estimator = registered_estimator(c)
    return estimator is None or estimator.discounts


def _whitens(c: Config) -> bool:
    estimator = registered_estimator(c)
    return estimator is None or estimator.whiten


WITH_CORRECTION = Condition(
    "with algo.advantage.is_correction_level = token or seq", lambda c: c.algo.advantage.is_correction_level != "off"
)


class Advantage(Section):
    """How the rewards of a batch become advantages of its tokens."""

    estimator: str = setting(
        "reinforce_baseline",
        description=(
            "Advantage estimator: a registered name or your own function. reinforce_baseline is REINFORCE++-baseline:"
            " the reward minus the mean of its group, whitened over the trained tokens of the batch."
        ),
        short="how rewards become advantages",
        openrlhf=True,
        names="user_code",
    )
    options: dict[str, Option] = setting(
        default_factory=dict,
        description="Options of your own estimator, which receives them as AdvantageInputs.options.",
        active_when=Condition(
            "with an estimator of your own in algo.advantage.estimator",
            lambda c: is_user_code(c.algo.advantage.estimator),
        ),
    )
    credit: Literal["trajectory", "turn"] = setting(
        "trajectory",
        description=(
            "What earns an advantage. 'trajectory': the whole response. 'turn': each turn, by the rewards from it on,"
            " compared with the same turns of its group; needs reward 'env' added up."
        ),
    )
    no_std_norm: bool = setting(
        False,
        description="Whiten without dividing by the standard deviation: advantages are only centred.",
        active_when=Condition(
            "with an estimator that whitens (algo.advantage.estimator = reinforce, reinforce_baseline or gae)",
            _whitens,
        ),
        openrlhf=True,
    )
    gamma: float = setting(
        1.0,
        gt=0,
        le=1,
        description="Discount per token.",
        active_when=Condition(
            "with an estimator that discounts (algo.advantage.estimator = reinforce or gae)", _discounts
        ),
        openrlhf=True,
    )
    lambd: float = setting(
        1.0,
        ge=0,
        le=1,
        description="Lambda of GAE: 1 trusts the returns, 0 trusts the critic.",
        active_when=WITH_CRITIC,
        openrlhf=True,
    )
    is_correction_level: Literal["off", "token", "seq"] = setting(
        "off",
        description="Importance-sampling correction by pi_old / (policy that sampled), per token or per sequence.",
        openrlhf=True,
    )
    is_correction_mode: Literal["mask", "clip"] = setting(
        "mask",
        description="What happens outside the thresholds: leave the tokens out, or clip the weight (TIS).",
        active_when=WITH_CORRECTION,
        openrlhf=True,
    )
    is_correction_gating: Literal["ratio", "binary_kl", "tv"] = setting(
        "ratio",
        description="Statistic that is compared with the thresholds: the ratio, a binary KL, or the total variation.",
        active_when=WITH_CORRECTION,
        openrlhf=True,
    )
    is_correction_threshold: tuple[float, ...] = setting(
        (0.5, 5.0),
        min_length=1,
        max_length=2,
        description="Lower and upper threshold of the statistic. One value is the upper threshold.",
        active_when=WITH_CORRECTION,
        openrlhf=True,
    )

    @model_validator(mode="after")
    def _correction_fits(self) -> Advantage:
        """Refuse what OpenRLHF's PolicyLoss would refuse in the first learner step."""
        if self.is_correction_level == "off":
            return self
        mode = self.is_correction_mode
        gating = self.is_correction_gating
        bounds = self.is_correction_threshold
        if mode == "clip" and (self.is_correction_level == "seq" or gating != "ratio"):
            raise ValueError(
                "algo.advantage.is_correction_mode = 'clip' clamps a per-token ratio: it needs is_correction_level ="
                " 'token' and is_correction_gating = 'ratio'. Use mode = 'mask' for the others."
            )
        if gating != "ratio" and len(bounds) == 2 and bounds[0] > 0:
            raise ValueError(
                f"algo.advantage.is_correction_gating = '{gating}' has an upper bound only, and the"
                f" threshold is {bounds}. Give one value, e.g. 0.02."
            )
        fact = f"algo.advantage.is_correction_threshold = {bounds} with is_correction_gating = '{gating}'"
        low, high = bounds if len(bounds) == 2 else (0.0, bounds[0])
        if gating == "ratio" and not (low <= 1 <= high and low < high):
            raise ValueError(
                f"{fact} is not a band around 1, the ratio at which both policies agree: the tokens to keep would be"
                " left out or clipped. Use low <= 1 <= high, e.g. 0.5 5.0; for divergences use the gatings binary_kl"
                " and tv."
            )
        if gating != "ratio" and high <= 0:
            raise ValueError(f"{fact} leaves out every token that differs at all. Use a value above 0, e.g. 0.02.")
        if gating == "tv" and high >= 1:
            raise ValueError(f"{fact} is never reached: two probabilities differ by less than 1. Use e.g. 0.1.")
        return self


WITH_REFERENCE = Condition(
    "with algo.kl.init_coef above 0, which loads a reference model", lambda c: bool(c.algo.kl.init_coef)
)


class Kl(Section):
    """KL to the reference model, over the tokens that the policy wrote (docs/algorithms.md)."""

    init_coef: float = setting(
        0.0,
        ge=0,
        description="Weight of the KL to the policy that the run started from. 0: no reference model is loaded.",
        openrlhf=True,
    )
    use_loss: bool = setting(
        False,
        description="Add the KL to the policy's loss. False: subtract it from the rewards, token by token.",
        openrlhf=True,
    )
    estimator: Literal["k1", "k2", "k3"] = setting(
        "k1",
        description="Estimate of a token's KL from l = log pi - log ref: l, l^2 / 2, or exp(-l) - 1 + l.",
        active_when=WITH_REFERENCE,
        openrlhf=True,
    )
    unbiased_gradient: bool = setting(
        True,
        description=(
            "Use the gradient of KL(pi || ref) whatever the estimator. False: differentiate the estimator's formula,"
            " as GRPO's papers do."
        ),
        active_when=Condition("with algo.kl.use_loss", lambda c: c.algo.kl.use_loss),
        openrlhf=True,
    )
    target: float | None = setting(
        None,
        gt=0,
        description="KL per token that the coefficient follows. Unset: the coefficient stays at init_coef.",
        unit="nats",
        openrlhf=True,
    )
    horizon: int | None = setting(
        None,
        ge=1,
        description="Samples over which the coefficient follows algo.kl.target. Unset: 10000.",
        unit="samples",
        openrlhf=True,
    )


class Algo(Section):
    advantage: Advantage = Field(default_factory=Advantage)
    kl: Kl = Field(default_factory=Kl)


@rule("algo.advantage.estimator", reads_estimator=True)
def critic_judges_one_chain_of_tokens(c: Config) -> Iterator[Fault]:
    if c.rollout.agent == "external" and estimator_of(c).critic:
        yield (
            f"algo.advantage.estimator = {c.algo.advantage.estimator!r} has a critic, which judges one chain of tokens,"
            " and a session of rollout.agent = 'external' may have several. Use an estimator without a critic, e.g."
            " reinforce_baseline."
        )


@rule("algo.advantage.credit")
def credit_by_turn_needs_rewards_of_turns(c: Config) -> Iterator[Fault]:
    advantage = c.algo.advantage
    if advantage.credit != "turn":
        return
    conflicts = {
        f"algo.advantage.gamma = {advantage.gamma:g} discounts by tokens": advantage.gamma != 1,
        "rollout.agent = 'external' does not report calls": c.rollout.agent == "external",
        f"actor.policy_loss_type = '{c.actor.policy_loss_type}' trains all tokens of a response by the mean of their"
        " advantages": c.policy_loss.over_sequences,
    }
    for environment in c.resolved_environments.values():
        prefix = environment.prefix
        reward = environment.reward
        rewards = [*reward.used]
        conflicts |= {
            f"{prefix}reward.name = {', '.join(rewards)} has no rewards of calls": "env" not in rewards,
            f"{prefix}reward.options has reduce = '{reward.env_reduce}', which makes a reward that is not their sum": (
                reward.env_reduce != "sum"
            ),
            f"{prefix}reward.group = {reward.group!r} replaces it": reward.group is not None,
            f"{prefix}reward.clip_range = {reward.clip_range} cuts their sum": reward.clip_range is not None,
            f"{prefix}reward.stop_properly_penalty_coef = {reward.stop_properly_penalty_coef} scales their sum": (
                reward.stop_properly_penalty_coef is not None
            ),
        }
    for fact, is_so in conflicts.items():
        if is_so:
            yield (
                f"algo.advantage.credit = 'turn' splits the environment's reward over its calls, and {fact}."
                " Use reward 'env' added up, or credit = 'trajectory'."
            )


@rule("algo.advantage.credit", reads_estimator=True)
def credit_by_turn_fits_the_estimator(c: Config) -> Iterator[Fault]:
    if c.algo.advantage.credit != "turn":
        return
    name = c.algo.advantage.estimator
    estimator = estimator_of(c)
    if estimator.critic and is_user_code(name):
        yield (
            "algo.advantage.credit = 'turn' pays what each turn earned to the critic, as gae does, and would never call"
            f" the function of algo.advantage.estimator = {name!r}, which says critic=True. Use estimator = 'gae', an"
            " Estimator without a critic, or credit = 'trajectory'."
        )
    elif not estimator.by_group:
        yield (
            "algo.advantage.credit = 'turn' compares a turn with the same turns of its group, and"
            f" algo.advantage.estimator = {name!r} compares with the whole batch, or does not say"
            " that a group is enough. Use one that compares within a group, e.g. reinforce_baseline; give your own"
            " Estimator by_group=True if it does; or use credit = 'trajectory'."
        )


@rule("algo.advantage.is_correction_level")
def correction_has_a_ratio_to_correct(c: Config) -> Iterator[Fault]:
    level = c.algo.advantage.is_correction_level
    if level == "off":
        return
    if c.pi_old == "engine":
        yield (
            f"algo.advantage.is_correction_level = '{level}' weighs by pi_old / (policy that sampled), which is 1 with"
            " actor.pi_old = 'engine'. Leave actor.pi_old unset, or set it to 'learner'."
        )
    if not c.policy_loss.is_corrected:
        yield (
            f"algo.advantage.is_correction_level = '{level}' has no effect with actor.policy_loss_type ="
            f" '{c.actor.policy_loss_type}', whose tokens it does not weigh: its ratio is to the policy that sampled"
            " already. Set it to 'off', or the loss to 'ppo'."
        )


@rule("algo.kl.init_coef")
def settings_of_kl_have_a_reference(c: Config) -> Iterator[Fault]:
    if c.algo.kl.init_coef:
        return
    needing = {
        "algo.kl.use_loss": c.algo.kl.use_loss,
        "algo.kl.target": c.algo.kl.target,
        "ref.offload": c.ref.offload and not c.needs_reference,
    }
    for name, value in needing.items():
        if value:
            yield About(
                name,
                f"{name} = {value} has no reference model to compare with, as algo.kl.init_coef = 0 loads none. "
                f"Set that, e.g. 0.001, or leave {name} out.",
            )


@rule("algo.kl.horizon")
def horizon_has_a_target(c: Config) -> Iterator[Fault]:
    kl = c.algo.kl
    if kl.horizon is not None and kl.target is None:
        yield (
            f"algo.kl.horizon = {kl.horizon} only applies to a coefficient that follows algo.kl.target, which is unset."
            " Set the KL per token to follow, e.g. 0.01."
        )


@rule("algo.kl.estimator")
def kl_loss_has_a_gradient(c: Config) -> Iterator[Fault]:
    kl = c.algo.kl
    if kl.use_loss and kl.estimator == "k1" and not kl.unbiased_gradient:
        yield (
            "algo.kl.estimator = 'k1' in the loss with algo.kl.unbiased_gradient = False has a gradient of zero on"
            " average, so it would hold nothing. Use k2 or k3, or unbiased_gradient."
        )
