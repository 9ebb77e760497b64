"""Metrics of groups, for a row of a training run or for an evaluation. Functions without state."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ..engines.session_trace import AGENT_FACTS
from ..rollout.group_meta import CALL_COUNT_RANGES, CALL_SECONDS, CALL_STATS, CODE_STATS, SHARE_PREFIX
from ..types import GroupMeta

N_SHARES = tuple(f"n_calls/{name}" for name in CALL_COUNT_RANGES)
NOT_PARTS = frozenset(
    {"calls", "truncated", "correct", "used_code", CALL_SECONDS, *CALL_STATS, *CODE_STATS, *AGENT_FACTS} | set(N_SHARES)
)
"""Names in a group's stats that are no parts of its rewards, or have a metric of their own."""
MIN_COUNT = 1e-6
"""Means times counts are whole numbers except for rounding: below this there was nothing to count."""


def rollout_metrics(groups: list[GroupMeta], without_calls: Collection[str] = ()) -> dict[str, float]:
    """Return means over all valid trajectories of some groups.

    Filtered groups are included, so that the filters do not bias the means.

    Args:
        groups: The groups that finished.
        without_calls: Environments in which a response makes no call. If all groups are of these, the metrics of how
            many responses called a tool are left out.
    """
    correct = np.array([c for g in groups for c in g.correct], bool)
    code = np.array([c for g in groups for c in g.used_code], bool)
    tokens = np.array([n for g in groups for n in g.response_tokens], float)
    if not len(correct):
        return {}
    weights = [len(g.correct) for g in groups]
    out = {
        "reward_mean": float(np.mean([r for g in groups for r in g.rewards])),
        "accuracy": float(correct.mean()),
        "response_tokens_mean": float(tokens.mean()),
        "response_tokens_p95": float(np.percentile(tokens, 95)),
        "calls_mean": float(np.average([g.stats["calls"] for g in groups], weights=weights)),
        "truncated": float(np.average([g.stats["truncated"] for g in groups], weights=weights)),
        "group_seconds_mean": float(np.mean([g.seconds for g in groups])),
    }
    for name in AGENT_FACTS:  # with external agents only
        weighted = [(g.stats[name], n) for g, n in zip(groups, weights, strict=True) if name in g.stats]
        if weighted:
            out[f"agent/{name}"] = float(np.average([v for v, _ in weighted], weights=[n for _, n in weighted]))
    out |= reward_parts(groups, weights)
    if code.any() or any(g.env not in without_calls for g in groups):
        out["code_ratio"] = float(code.mean())
        if correct.any():
            out["code_in_correct"] = float(code[correct].mean())
        counted = [g for g in groups if any(name in g.stats for name in N_SHARES)]
        samples = sum(len(g.correct) for g in counted)
        out |= {
            name: sum(g.stats.get(name, 0.0) * len(g.correct) for g in counted) / samples
            for name in (N_SHARES if samples else ())
        }
    return out | call_metrics(groups)


def call_metrics(groups: list[GroupMeta]) -> dict[str, float]:
    """Return ratios of sums over all groups that have them.

    Correct responses per call (OTC), calls in correct responses per correct response, the share of calls that ran
    without an error (of all, of correct and of incorrect responses), the share of programs that were run, and the share
    of responses with a program that had answered before it (ToRL).
    """
    counted = [g for g in groups if g.correct and all(name in g.stats for name in CALL_STATS)]
    right = sum(sum(g.correct) for g in counted)
    calls, of_right, ok, ok_of_right = (
        sum(g.stats[name] * len(g.correct) for g in counted) for name in ("calls", *CALL_STATS)
    )
    written, run, responses, after = (
        sum(g.stats.get(name, 0.0) * len(g.correct) for g in counted) for name in CODE_STATS
    )
    ratios = {
        "code_executed": (run, written),
        "code_after_answer": (after, responses),
        "tool_productivity": (right, calls),
        "calls_in_correct": (of_right, right),
        "code_pass": (ok, calls),
        "code_pass_correct": (ok_of_right, of_right),
        "code_pass_incorrect": (ok - ok_of_right, calls - of_right),
    }
    return {
        name: min(num / den, 1.0) if name.startswith("code_") else num / den
        for name, (num, den) in ratios.items()
        if den > MIN_COUNT
    }


def env_metrics(env: str, groups: list[GroupMeta], without_calls: Collection[str]) -> dict[str, float]:
    """Return the metrics of one environment of several.

    These are the run's metrics that differ between environments, and the mean duration of a call.
    """
    metrics = rollout_metrics(groups, without_calls)
    names = (
        "reward_mean",
        "accuracy",
        "code_ratio",
        "response_tokens_mean",
        "calls_mean",
        "truncated",
        "group_seconds_mean",
    )
    out = {f"env/{env}/{name}": metrics[name] for name in names if name in metrics}
    out[f"env/{env}/groups"] = float(len(groups))
    timed = [(g.stats[CALL_SECONDS], g.stats["calls"] * len(g.correct)) for g in groups if CALL_SECONDS in g.stats]
    if timed:
        out[f"env/{env}/call_seconds_mean"] = float(
            np.average([s for s, _ in timed], weights=[calls for _, calls in timed])
        )
    return out


def reward_parts(groups: list[GroupMeta], weights: list[int]) -> dict[str, float]:
    """Return the mean of each part of the rewards, whatever a reward records by name, as `reward/<part>`.

    Each mean is over the trajectories that have the part.

    Args:
        groups: The groups.
        weights: Number of valid trajectories of each group.
    """
    names = dict.fromkeys(
        name for g in groups for name in g.stats if name not in NOT_PARTS and not name.startswith(SHARE_PREFIX)
    )
    weighted = {
        name: [
            (g.stats[name], n * g.stats.get(SHARE_PREFIX + name, 1.0))
            for g, n in zip(groups, weights, strict=True)
            if name in g.stats
        ]
        for name in names
    }
    return {
        f"reward/{name}": float(np.average([v for v, _ in values], weights=[n for _, n in values]))
        for name, values in weighted.items()
    }
