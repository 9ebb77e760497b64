"""Checks of the method. A method that could train nothing is refused; one that is surely a mistake gets a remark.

The settings of a remark are right by themselves, but belong to different methods. A remark gives fact, value and
remedy, and refuses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...algorithms.advantages import get_estimator
from ...algorithms.losses.base import MAX_SEQUENCE_CLIP
from ...config import Config
from ...config.environments import in_section
from ...errors import ConfigError
from .envs import environments_of

MIN_TOKEN_CLIP = 0.01
"""A narrower clip range is too narrow for ratios of tokens."""
DEFAULT_HORIZON = 10_000
"""The value of an unset algo.kl.horizon, in samples."""
MAX_DISCOUNT_LENGTHS = 20
"""A longer response, in units of the tokens over which the discount falls to 1/e, has no reward at its beginning."""
FULL_WEIGHT_RATE = 1e-6
"""The default of actor.learning_rate, chosen for training all weights."""


def check_method(cfg: Config) -> list[str]:
    """Check the method and return remarks on it.

    Raises:
        ConfigError: Nothing could be learned.
    """
    if faults := [*_groups_of_one(cfg), *_greedy(cfg), *_kl_and_critic(cfg)]:
        raise ConfigError("\n".join(faults))
    return [*remarks(cfg)]


def remarks(config: Config) -> Iterator[str]:
    """Yield a remark for each combination of settings that is surely a mistake."""
    yield from _clip(config)
    yield from _losses_over_sequences(config)
    yield from _stale_tokens_without_ratio(config)
    yield from _discount(config)
    yield from _kl(config)
    yield from _lora(config)


def _groups_of_one(config: Config) -> Iterator[str]:
    if config.rollout.n_samples_per_prompt > 1:
        return
    single_sample = "rollout.n_samples_per_prompt = 1"
    if get_estimator(config.algo.advantage.estimator).compares_responses:
        yield (
            f"algo.advantage.estimator = {config.algo.advantage.estimator!r} compares the responses of a prompt, and"
            f" {single_sample}: every advantage is 0. Use flash_reinforce, reinforce or gae, or more responses."
        )
    for environment in environments_of(config):
        drops = [name for name in environment.filter.order if name in ("zero_variance", "length_gap")]
        if drops:
            yield in_section(
                f"filter.names = {environment.filter.order} has {drops[0]!r}, which drops every group of one response,"
                f" and {single_sample}. Set filter.names, e.g. to [].",
                environment.section,
            )


def _greedy(config: Config) -> Iterator[str]:
    if config.rollout.top_k == 1:
        yield (
            "rollout.top_k = 1 leaves one token to sample, of probability 1: all responses to a prompt are the same,"
            " and no token has a gradient. Use 0, which leaves all."
        )


def _kl_and_critic(config: Config) -> Iterator[str]:
    kl = config.algo.kl
    samples = config.rollout.batch_size * config.rollout.n_samples_per_prompt
    if kl.target is not None and (kl.horizon or DEFAULT_HORIZON) <= samples / 5:
        yield (
            f"algo.kl.horizon = {kl.horizon or DEFAULT_HORIZON} samples is at most a fifth of a batch of {samples}: one"
            " batch whose KL is below algo.kl.target would make the coefficient 0 or negative, which rewards the KL."
            f" Use more, e.g. {5 * samples}."
        )
    if get_estimator(config.algo.advantage.estimator).critic and (config.critic.updates or 1) > samples:
        yield (
            f"critic.updates = {config.critic.updates} is more than the {samples} samples of a batch, so the critic"
            " would make fewer updates. Lower it."
        )


def _clip(config: Config) -> Iterator[str]:
    actor = config.actor
    advantage = config.algo.advantage
    clip = f"actor.eps_clip_low_high = {_pair(actor.eps_clip_low_high)}"
    loss = config.policy_loss
    chosen = f"actor.policy_loss_type = '{actor.policy_loss_type}'"
    if loss.over_sequences and max(actor.eps_clip_low_high) >= MAX_SEQUENCE_CLIP:
        yield (
            f"{clip} with {chosen} clips almost nothing: its ratio is a geometric mean over a response, which stays"
            f" near 1. Use a range of its size, 3e-4 4e-4 in its paper ({loss.source}), and look at clip_low and"
            " clip_high in the metrics."
        )
    if loss.over_sequences and actor.dual_clip is not None and actor.dual_clip >= 1 + MAX_SEQUENCE_CLIP:
        yield (
            f"actor.dual_clip = {actor.dual_clip:g} with {chosen} is hardly ever reached: its ratio is a geometric mean"
            " over a response, which stays near 1. Leave it out."
        )
    if (
        loss.clips == "update"
        and not loss.over_sequences
        and not actor.own_loss
        and max(actor.eps_clip_low_high) < MIN_TOKEN_CLIP
        and not _ratio_is_always_one(config)
    ):
        yield (
            f"{clip} with {chosen} is a range for means over a response (gspo): ratios of tokens"
            " leave it at once, and about every other token has no gradient. Use 0.2 0.28, or actor.policy_loss_type ="
            " 'gspo'."
        )
    bounds = advantage.is_correction_threshold
    low, high = (0.0, bounds[0]) if len(bounds) == 1 else bounds
    uses_mean = advantage.is_correction_level == "seq" and advantage.is_correction_gating == "ratio"
    if uses_mean and low <= 1 - MAX_SEQUENCE_CLIP and high >= 1 + MAX_SEQUENCE_CLIP:
        yield (
            f"algo.advantage.is_correction_threshold = {_pair(bounds)} with algo.advantage.is_correction_level = 'seq'"
            " leaves out almost nothing: it uses the geometric mean of a response's ratios, which stays near 1."
            " Use a narrow band, e.g. 0.99 1.01, or is_correction_level = 'token'."
        )


def _losses_over_sequences(config: Config) -> Iterator[str]:
    actor = config.actor
    advantage = config.algo.advantage
    by_sequence = config.policy_loss.over_sequences
    chosen = f"actor.policy_loss_type = '{actor.policy_loss_type}'"
    mean = chosen if by_sequence else f"actor.loss_agg_mode = '{actor.loss_agg_mode}'"
    estimator = get_estimator(advantage.estimator)
    centred = "is whitened over the batch's tokens" if estimator.whiten else ""
    if estimator.centred_over_tokens:
        centred = "has a mean of 0 over a group's tokens"
    if (by_sequence or actor.loss_agg_mode == "seq-mean-token-mean") and centred:
        yield (
            f"algo.advantage.estimator = {advantage.estimator!r} {centred}, and the loss of {mean} is a mean over"
            " responses: where the right ones are longer than the wrong ones, or shorter, their advantages have a mean"
            " that is not 0, and all are pushed one way. Use one that is centred over responses, e.g. group_norm or"
            f" rloo, or {'another loss' if by_sequence else 'token-mean'}."
        )
    discounted = advantage.gamma < 1 and estimator.discounts and not estimator.critic
    of_tokens = {
        f"algo.advantage.estimator = {advantage.estimator!r}": estimator.critic,
        f"algo.advantage.gamma = {advantage.gamma:g}": discounted,
        f"algo.kl.init_coef = {config.algo.kl.init_coef:g} in the reward": bool(config.algo.kl.init_coef)
        and not config.algo.kl.use_loss,
    }
    for setting in (setting for setting, applies in of_tokens.items() if by_sequence and applies):
        yield (
            f"{setting} gives each token an advantage of its own, and {mean} trains all tokens of a response by their"
            f" mean. Use actor.policy_loss_type = 'ppo'{', or algo.kl.use_loss' if 'algo.kl' in setting else ''}."
        )


def _ratio_is_always_one(config: Config) -> bool:
    """Return True if pi_old is the policy that is trained, in every update."""
    return config.pi_old == "learner" and config.updates_per_batch == 1


def _stale_tokens_without_ratio(config: Config) -> Iterator[str]:
    actor = config.actor
    clips = actor.own_loss is None and config.policy_loss.has_ratio
    if (
        _ratio_is_always_one(config)
        and clips
        and config.algo.advantage.is_correction_level == "off"
        and config.max_staleness
    ):
        yield (
            "actor.pi_old = 'learner' with one update per batch makes every ratio 1: nothing is clipped, and tokens up"
            f" to S = {config.max_staleness} updates old are trained as if they were fresh. Use actor.pi_old ="
            " 'engine', or set algo.advantage.is_correction_level = 'token'."
        )


def _discount(config: Config) -> Iterator[str]:
    gamma = config.algo.advantage.gamma
    max_new_tokens = config.rollout.max_new_tokens
    if gamma >= 1 or not get_estimator(config.algo.advantage.estimator).discounts:
        return
    discount_tokens = 1 / (1 - gamma)
    if discount_tokens < max_new_tokens / MAX_DISCOUNT_LENGTHS:
        yield (
            f"algo.advantage.gamma = {gamma:g} discounts by tokens: {discount_tokens:.0f} tokens before the end a"
            " reward counts a third, and at the beginning of a response of rollout.max_new_tokens ="
            f" {max_new_tokens} almost nothing. Use 1."
        )


def _kl(config: Config) -> Iterator[str]:
    kl = config.algo.kl
    if kl.init_coef and not kl.use_loss and kl.estimator != "k1":
        yield (
            f"algo.kl.estimator = '{kl.estimator}' in the reward hardly keeps a policy near its reference: only k1 has"
            " the gradient of the KL there. Use k1, or algo.kl.use_loss."
        )


def _lora(config: Config) -> Iterator[str]:
    actor = config.actor
    rank = config.ds.lora.rank
    if rank and actor.optim == "adam" and actor.learning_rate <= FULL_WEIGHT_RATE:
        yield (
            f"actor.learning_rate = {actor.learning_rate:g} is a step for training all weights, and ds.lora.rank ="
            f" {rank}: adapters move the model more than ten times less with it. Raise it, e.g. to 2e-5."
        )


def _pair(bounds: tuple[float, ...]) -> str:
    return " ".join(f"{bound:g}" for bound in bounds)
