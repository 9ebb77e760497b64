"""Metrics of groups, for a row of a training run or for an evaluation. Functions without state.

    rollout_metrics    the metrics of some groups
      reward_parts       of them, the parts of the rewards: reward/NAME
      call_metrics       of them, ratios of the calls: code_pass, tool_productivity, ...
    env_metrics        some of the same for the groups of one environment: env/NAME/...

A group comes with means over its valid trajectories, `GroupMeta.stats`. A mean over all trajectories of several groups
therefore weighs each group by the number of its valid trajectories.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from ..engines.session_trace import AGENT_FACTS
from ..rollout.group_meta import CALL_COUNT_RANGES, CALL_SECONDS, CALL_STATS, CALLS_TIMED, CODE_STATS, SHARE_PREFIX
from ..types import GroupMeta

CALL_COUNT_SHARES = tuple(f"n_calls/{name}" for name in CALL_COUNT_RANGES)
"""Names in a group's stats: the share of its samples whose number of calls is in a range."""
NOT_REWARD_PARTS = frozenset(
    {
        "calls",
        "truncated",
        "correct",
        "used_code",
        CALL_SECONDS,
        CALLS_TIMED,
        *CALL_STATS,
        *CODE_STATS,
        *AGENT_FACTS,
        *CALL_COUNT_SHARES,
    }
)
"""Names in a group's stats that are no parts of its rewards, or have a metric of their own."""
ENV_METRICS = (
    "reward_mean",
    "accuracy",
    "code_ratio",
    "response_tokens_mean",
    "calls_mean",
    "truncated",
    "group_seconds_mean",
)
"""Metrics of a run that each of several environments has as well."""
MIN_COUNT = 1e-6
"""A count that is computed as mean times samples is a whole number except for rounding: below this it is 0."""


def rollout_metrics(groups: Sequence[GroupMeta], without_calls: Collection[str] = ()) -> dict[str, float]:
    """Return means over all valid trajectories of some groups.

    Filtered groups are included, so that the filters do not bias the means.

    Args:
        groups: The groups that finished.
        without_calls: Environments in which a response makes no call. If all groups are of these, the metrics of how
            many responses called a tool are left out.

    Returns:
        The metrics by name; empty if no trajectory is valid.
    """
    correct = np.array([is_correct for group in groups for is_correct in group.correct], bool)
    if not len(correct):
        return {}
    rewards = [reward for group in groups for reward in group.rewards]
    tokens = np.array([tokens for group in groups for tokens in group.response_tokens], float)
    metrics = {
        "reward_mean": float(np.mean(rewards)),
        "accuracy": float(correct.mean()),
        "response_tokens_mean": float(tokens.mean()),
        "response_tokens_p95": float(np.percentile(tokens, 95)),
        "calls_mean": _mean_per_sample(groups, "calls"),
        "truncated": _mean_per_sample(groups, "truncated"),
        "group_seconds_mean": float(np.mean([group.seconds for group in groups])),
    }
    for name in AGENT_FACTS:
        with_external_agents = [group for group in groups if name in group.stats]
        if with_external_agents:
            metrics[f"agent/{name}"] = _mean_per_sample(with_external_agents, name)
    metrics |= reward_parts(groups)
    # An external agent may report a call although its environment has none: then the metrics say so.
    used_code = np.array([used for group in groups for used in group.used_code], bool)
    if used_code.any() or any(group.env not in without_calls for group in groups):
        metrics["code_ratio"] = float(used_code.mean())
        if correct.any():
            metrics["code_in_correct"] = float(used_code[correct].mean())
        metrics |= _call_count_shares(groups)
    return metrics | call_metrics(groups)


def reward_parts(groups: Sequence[GroupMeta]) -> dict[str, float]:
    """Return the mean of each part of the rewards, whatever a reward records by name, as `reward/<part>`.

    Each mean is over the trajectories that have the part.
    """
    values: dict[str, list[tuple[float, float]]] = {}
    for group in groups:
        for name, mean in group.stats.items():
            if name in NOT_REWARD_PARTS or name.startswith(SHARE_PREFIX):
                continue
            # All trajectories of the group have the part unless it has a share of those that do.
            samples = len(group.correct) * group.stats.get(SHARE_PREFIX + name, 1.0)
            values.setdefault(name, []).append((mean, samples))
    return {f"reward/{name}": _weighted_mean(part) for name, part in values.items()}


def call_metrics(groups: Sequence[GroupMeta]) -> dict[str, float]:
    """Return ratios of sums over all groups that have the statistics of calls. A ratio of 0 / 0 is left out.

    code_executed: the share of programs that ran.
    code_after_answer: the share of responses with a program whose answer came before it (ToRL).
    tool_productivity: correct responses per call (OTC).
    calls_in_correct: calls in correct responses, per correct response.
    code_pass, code_pass_correct, code_pass_incorrect: the share of calls that ran without an error; of all calls, and
        of those in correct and in incorrect responses.
    """
    counted = [group for group in groups if group.correct and all(name in group.stats for name in CALL_STATS)]
    correct = sum(sum(group.correct) for group in counted)
    calls = _sum_over_samples(counted, "calls")
    calls_correct, calls_ok, calls_ok_correct = (_sum_over_samples(counted, name) for name in CALL_STATS)
    written, ran, with_program, after_answer = (_sum_over_samples(counted, name) for name in CODE_STATS)
    ratios = {
        "code_executed": (ran, written),
        "code_after_answer": (after_answer, with_program),
        "tool_productivity": (correct, calls),
        "calls_in_correct": (calls_correct, correct),
        "code_pass": (calls_ok, calls),
        "code_pass_correct": (calls_ok_correct, calls_correct),
        "code_pass_incorrect": (calls_ok - calls_ok_correct, calls - calls_correct),
    }
    metrics = {}
    for name, (part, total) in ratios.items():
        if total > MIN_COUNT:
            ratio = part / total
            # Those named code_ are shares, which rounding must not make greater than 1.
            metrics[name] = min(ratio, 1.0) if name.startswith("code_") else ratio
    return metrics


def env_metrics(env: str, groups: Sequence[GroupMeta], without_calls: Collection[str]) -> dict[str, float]:
    """Return the metrics of one environment of several.

    These are the run's metrics that differ between environments, the number of groups and the mean duration of a call.

    Args:
        env: Name of the environment.
        groups: The groups of all environments.
        without_calls: See `rollout_metrics`.
    """
    groups = [group for group in groups if group.env == env]
    all_metrics = rollout_metrics(groups, without_calls)
    metrics = {name: all_metrics[name] for name in ENV_METRICS if name in all_metrics}
    metrics["groups"] = float(len(groups))
    timed = [group for group in groups if CALL_SECONDS in group.stats]
    if timed:
        # A mean over calls: a group counts by its calls. Groups in checkpoints of older versions have no CALLS_TIMED.
        metrics["call_seconds_mean"] = _weighted_mean(
            (group.stats[CALL_SECONDS], group.stats.get(CALLS_TIMED, group.stats["calls"]) * len(group.correct))
            for group in timed
        )
    return {f"env/{env}/{name}": value for name, value in metrics.items()}


def _call_count_shares(groups: Sequence[GroupMeta]) -> dict[str, float]:
    """Return the shares of samples by number of calls, over the groups that have any of them."""
    counted = [group for group in groups if any(name in group.stats for name in CALL_COUNT_SHARES)]
    samples = sum(len(group.correct) for group in counted)
    if not samples:
        return {}
    return {name: _sum_over_samples(counted, name) / samples for name in CALL_COUNT_SHARES}


def _sum_over_samples(groups: Iterable[GroupMeta], name: str) -> float:
    """Return the sum over all samples of what each group has as a mean over its samples; 0 where it has none."""
    return sum(group.stats.get(name, 0.0) * len(group.correct) for group in groups)


def _mean_per_sample(groups: Iterable[GroupMeta], name: str) -> float:
    """Return the mean over all samples of what every group has as a mean over its samples."""
    return _weighted_mean((group.stats[name], len(group.correct)) for group in groups)


def _weighted_mean(values: Iterable[tuple[float, float]]) -> float:
    """Return the mean of (value, weight)."""
    pairs = list(values)
    return float(np.average([value for value, _ in pairs], weights=[weight for _, weight in pairs]))
