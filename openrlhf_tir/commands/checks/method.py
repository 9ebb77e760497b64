"""Checks of the method: what could train nothing is refused, what trains and is surely a mistake is remarked on.

Settings that are right by themselves, each in another method than the other's. Each remark gives fact, value and
remedy, and refuses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...algorithms.advantages import get_estimator
from ...config import Config
from ...config.effects.rows import GROUP_ESTIMATORS
from ...config.environments import in_section
from ...errors import ConfigError
from .envs import environments_of

OF_TOKENS, OF_SEQUENCES = 0.01, 0.1
"""A clip range below the first is none for ratios of tokens, one from the second on none for means of their logs."""
HORIZON = 10_000
"""What an unset algo.kl.horizon is."""
OF_LENGTH = 20
"""A response has so many times the tokens over which the discount falls to 1/e: e^-20 is left at its beginning."""
LORA_RATE = 1e-6
"""The default of actor.learning_rate, chosen for training all weights."""


def check_method(cfg: Config) -> list[str]:
    """Remarks. Raises ConfigError where nothing could be learned."""
    if faults := [*_groups_of_one(cfg), *_greedy(cfg), *_beside_the_policy(cfg)]:
        raise ConfigError("\n".join(faults))
    return [*remarks(cfg)]


def remarks(c: Config) -> Iterator[str]:
    yield from _clip(c)
    yield from _means_over_sequences(c)
    yield from _ratio_of_one(c)
    yield from _discount(c)
    yield from _kl(c)
    yield from _lora(c)


def _groups_of_one(c: Config) -> Iterator[str]:
    if c.rollout.n_samples_per_prompt > 1:
        return
    one, estimator = "rollout.n_samples_per_prompt = 1", c.algo.advantage.estimator
    if estimator in GROUP_ESTIMATORS and estimator != "flash_reinforce":
        yield (
            f"algo.advantage.estimator = {estimator!r} compares the responses of a prompt, and {one}: every advantage"
            " is 0. Use flash_reinforce, reinforce or gae, or more responses."
        )
    for e in environments_of(c):
        if drops := [name for name in e.filter.order if name in ("zero_variance", "length_gap")]:
            yield in_section(
                f"filter.names = {e.filter.order} has {drops[0]!r}, which drops every group of one response, and {one}."
                " Set filter.names, e.g. to none.",
                e.section,
            )


def _greedy(c: Config) -> Iterator[str]:
    if c.rollout.top_k == 1:
        yield (
            "rollout.top_k = 1 leaves one token to sample, of probability 1: all responses to a prompt are the same,"
            " and no token has a gradient. Use 0, which leaves all."
        )


def _beside_the_policy(c: Config) -> Iterator[str]:
    kl, samples = c.algo.kl, c.rollout.batch_size * c.rollout.n_samples_per_prompt
    if kl.target is not None and (kl.horizon or HORIZON) <= samples / 5:
        yield (
            f"algo.kl.horizon = {kl.horizon or HORIZON} samples is no more than a fifth of a batch of {samples}: one"
            " batch whose KL is below algo.kl.target would make the coefficient 0 or negative, which rewards the KL."
            f" Use more, e.g. {5 * samples}."
        )
    if c.algo.advantage.estimator == "gae" and (c.critic.updates or 1) > samples:
        yield (
            f"critic.updates = {c.critic.updates} parts are more than the {samples} samples of a batch, so the critic"
            " would make fewer updates. Lower it."
        )


def _clip(c: Config) -> Iterator[str]:
    a, adv = c.actor, c.algo.advantage
    clip = f"actor.eps_clip = {a.eps_clip:g}"
    if a.eps_clip_low_high:
        clip = f"actor.eps_clip_low_high = {_pair(a.eps_clip_low_high)}"
    if a.policy_loss_type == "gspo" and max(a.clip) >= OF_SEQUENCES:
        yield (
            f"{clip} with actor.policy_loss_type = 'gspo' clips next to nothing: its ratio is a geometric mean over a"
            " response, which stays near 1. Use a range of its size, 3e-4 4e-4 in its paper (arXiv 2507.18071), and"
            " look at clip_low and clip_high in the metrics."
        )
    if a.policy_loss_type == "gspo" and a.dual_clip is not None and a.dual_clip >= 1 + OF_SEQUENCES:
        yield (
            f"actor.dual_clip = {a.dual_clip:g} with actor.policy_loss_type = 'gspo' is hardly ever reached: its ratio"
            " is a geometric mean over a response, which stays near 1. Leave it out."
        )
    if a.policy_loss_type == "ppo" and not a.policy_loss and max(a.clip) < OF_TOKENS and not _no_ratio(c):
        yield (
            f"{clip} with actor.policy_loss_type = 'ppo' is a range for means over a response (gspo): ratios of tokens"
            " leave it at once, and about every other token has no gradient. Use 0.2 0.28, or actor.policy_loss_type ="
            " 'gspo'."
        )
    bounds = adv.is_correction_threshold
    low, high = (0.0, bounds[0]) if len(bounds) == 1 else bounds
    by_mean = adv.is_correction_level == "seq" and adv.is_correction_gating == "ratio"
    if by_mean and low <= 1 - OF_SEQUENCES and high >= 1 + OF_SEQUENCES:
        yield (
            f"algo.advantage.is_correction_threshold = {_pair(bounds)} with algo.advantage.is_correction_level = 'seq'"
            " leaves out next to nothing: it looks at the geometric mean of a response's ratios, which stays near 1."
            " Use a narrow band, e.g. 0.99 1.01, or is_correction_level = 'token'."
        )


def _means_over_sequences(c: Config) -> Iterator[str]:
    a, adv = c.actor, c.algo.advantage
    gspo = a.policy_loss_type == "gspo"
    mean = "actor.policy_loss_type = 'gspo'" if gspo else f"actor.loss_agg_mode = '{a.loss_agg_mode}'"
    centred = "is whitened over the batch's tokens" if get_estimator(adv.estimator).whiten else ""
    if adv.estimator == "opo":
        centred = "has a mean of 0 over a group's tokens"
    if (gspo or a.loss_agg_mode == "seq-mean-token-mean") and centred:
        yield (
            f"algo.advantage.estimator = {adv.estimator!r} {centred}, and the loss of {mean} is a mean over responses:"
            " where the right ones are longer than the wrong ones, or shorter, their advantages have a mean that is not"
            " 0, and all are pushed one way. Use one that is centred over responses, e.g. group_norm or rloo, or"
            f" {'another loss' if gspo else 'token-mean'}."
        )
    of_tokens = {
        f"algo.advantage.estimator = {adv.estimator!r}": get_estimator(adv.estimator).critic,
        f"algo.advantage.gamma = {adv.gamma:g}": adv.estimator == "reinforce" and adv.gamma < 1,
        f"algo.kl.init_coef = {c.algo.kl.init_coef:g} in the reward": bool(c.algo.kl.init_coef)
        and not c.algo.kl.use_loss,
    }
    for what in (what for what, so in of_tokens.items() if gspo and so):
        yield (
            f"{what} gives each token an advantage of its own, and {mean} trains all tokens of a response by their"
            f" mean. Use actor.policy_loss_type = 'ppo'{', or algo.kl.use_loss' if 'algo.kl' in what else ''}."
        )


def _no_ratio(c: Config) -> bool:
    """Whether pi_old is the policy that is trained, in every update."""
    return c.pi_old == "learner" and c.updates_per_batch == 1


def _ratio_of_one(c: Config) -> Iterator[str]:
    a = c.actor
    clips = a.policy_loss is None and a.policy_loss_type != "pg"
    if _no_ratio(c) and clips and c.algo.advantage.is_correction_level == "off" and c.max_staleness:
        yield (
            "actor.pi_old = 'learner' with one update per batch makes every ratio 1: nothing is clipped, and tokens up"
            f" to S = {c.max_staleness} updates old are trained as if they were fresh. Use actor.pi_old = 'engine', or"
            " set algo.advantage.is_correction_level = 'token'."
        )


def _discount(c: Config) -> Iterator[str]:
    gamma, most = c.algo.advantage.gamma, c.rollout.max_new_tokens
    if (
        c.algo.advantage.estimator in ("reinforce", "gae")
        and gamma < 1
        and (within := 1 / (1 - gamma)) < most / OF_LENGTH
    ):
        yield (
            f"algo.advantage.gamma = {gamma:g} discounts by tokens: a reward is worth a third {within:.0f} tokens"
            f" before the end, and next to nothing at the beginning of a response of rollout.max_new_tokens = {most}."
            " Use 1."
        )


def _kl(c: Config) -> Iterator[str]:
    kl = c.algo.kl
    if kl.init_coef and not kl.use_loss and kl.estimator != "k1":
        yield (
            f"algo.kl.estimator = '{kl.estimator}' in the reward hardly holds a policy that is near its reference: only"
            " k1 has the gradient of the KL there. Use k1, or algo.kl.use_loss."
        )


def _lora(c: Config) -> Iterator[str]:
    a, rank = c.actor, c.ds.lora.rank
    if rank and a.optim == "adam" and a.learning_rate <= LORA_RATE:
        yield (
            f"actor.learning_rate = {a.learning_rate:g} is a step for training all weights, and ds.lora.rank = {rank}:"
            " adapters move the model more than ten times less with it. Raise it, e.g. to 2e-5."
        )


def _pair(bounds: tuple[float, ...]) -> str:
    return " ".join(f"{bound:g}" for bound in bounds)
