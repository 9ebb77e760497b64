"""Describe a group's payload for the controller, as a `GroupMeta`. Statistics are over valid trajectories."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from ..rewards.checking.answer_text import model_text
from ..types import CORRECT_ABOVE, Group, GroupMeta, Trajectory, Verdict

CALL_SECONDS = "call_seconds"
"""Name in a group's stats: mean seconds that the environment took for a call. It had none that could not be read."""
CALLS_TIMED = "calls_timed"
"""Name in a group's stats, a mean over its samples: calls of which CALL_SECONDS is the mean."""
CALL_STATS = ("calls_correct", "calls_ok", "calls_ok_correct")
"""Names in a group's stats, means over its samples: calls of correct samples, calls that ran without an error, calls of
correct samples that did."""
CODE_STATS = ("code_written", "code_run", "code_responses", "code_after_answer")
"""Names in a group's stats, means over its samples, about fenced Python: programs that the model wrote, programs that
ran (at most: the smaller number of programs and executed calls), samples with a program, samples whose first program
comes after their first answer."""
CALL_COUNT_RANGES = {"0": 0, "1": 1, "2": 2, "3_4": 4, "5_8": 8, "9_up": None}
"""Ranges of the number of calls of a sample: name -> largest number, None for no limit. `n_calls/NAME` in a group's
stats is the share of its samples in the range; a range without samples is left out."""
SHARE_PREFIX = "have/"
"""Prefix of a name in a group's stats: the share of its samples that have this reward part, if not all do."""

_PROGRAM = re.compile(r"```(?:python|py)\b")
_ANSWER = re.compile(r"\\boxed\{|<answer>")


def describe(
    group: Group, *, prompt_tokens: int, verdict: Verdict, failed: str | None, actor: str, seconds: float
) -> GroupMeta:
    """Return the metadata of a group.

    Args:
        group: The group, scored and filtered.
        prompt_tokens: Tokens of its prompt.
        verdict: Decision of the filters.
        failed: Why the group as a whole cannot be used, if it cannot.
        actor: Name of the rollout actor.
        seconds: Duration of the rollout.
    """
    valid = group.valid
    versions = [version for trajectory in valid if (version := trajectory.oldest_version) is not None]
    is_masked = any(trajectory.masked for trajectory in valid)
    has_branches = any(trajectory.branches for trajectory in valid)
    return GroupMeta(
        key=group.key,
        verdict=verdict,
        index=[trajectory.index for trajectory in valid],
        rewards=[trajectory.scored for trajectory in valid],
        correct=[trajectory.parts["correct"] > CORRECT_ABOVE for trajectory in valid],
        used_code=[bool(trajectory.parts.get("used_code", trajectory.calls)) for trajectory in valid],
        response_tokens=[trajectory.response_tokens for trajectory in valid],
        model_tokens=[trajectory.model_tokens for trajectory in valid],
        prompt_tokens=prompt_tokens,
        oldest_version=min(versions, default=None),
        failures=dict(Counter(trajectory.failed for trajectory in group.trajectories if trajectory.failed)),
        why={t.failed: t.why for t in group.trajectories if t.failed and t.why},
        failed=failed,
        stats=group_stats(valid),
        actor=actor,
        env=group.task.env,
        seconds=seconds,
        masked=[trajectory.masked for trajectory in valid] if is_masked else [],
        branch_tokens=[trajectory.branch_tokens for trajectory in valid] if has_branches else [],
        changes=group.changes + [change for trajectory in valid for change in trajectory.changes],
    )


def group_stats(valid: list[Trajectory]) -> dict[str, float]:
    """Return the statistics of a group by name: means over its valid trajectories.

    They are the mean of every reward part over the trajectories that have it (and their share, if not all have it), the
    statistics of calls and programs named above, the mean number of calls, and the share of truncated trajectories.
    """
    if not valid:
        return {}
    stats: dict[str, float] = {}
    for name in sorted({name for trajectory in valid for name in trajectory.parts}):
        values = [trajectory.parts[name] for trajectory in valid if name in trajectory.parts]
        stats[name] = float(np.mean(values))
        if len(values) < len(valid):
            stats[SHARE_PREFIX + name] = len(values) / len(valid)
    seconds = [call.seconds for trajectory in valid for call in trajectory.calls if call.executed]
    if seconds:
        stats[CALL_SECONDS] = float(np.mean(seconds))
        stats[CALLS_TIMED] = len(seconds) / len(valid)
    for names, stats_of in ((CALL_STATS, _call_stats), (CODE_STATS, _code_stats)):
        means = np.mean([stats_of(trajectory) for trajectory in valid], axis=0).tolist()
        stats |= dict(zip(names, means, strict=True))
    ranges = Counter(_call_count_range(len(trajectory.calls)) for trajectory in valid)
    stats |= {f"n_calls/{name}": count / len(valid) for name, count in ranges.items()}
    stats["calls"] = float(np.mean([len(trajectory.calls) for trajectory in valid]))
    stats["truncated"] = float(np.mean([trajectory.finish_reason == "length" for trajectory in valid]))
    return stats


def _call_count_range(calls: int) -> str:
    return next(name for name, largest in CALL_COUNT_RANGES.items() if largest is None or calls <= largest)


def _call_stats(trajectory: Trajectory) -> tuple[int, ...]:
    """Return CALL_STATS of one sample."""
    ok = sum(call.outcome == "ok" for call in trajectory.calls)
    is_correct = trajectory.parts.get("correct", 0.0) > CORRECT_ABOVE
    return len(trajectory.calls) * is_correct, ok, ok * is_correct


def _code_stats(trajectory: Trajectory) -> tuple[int, ...]:
    """Return CODE_STATS of one sample."""
    text = model_text(trajectory)
    starts = [match.start() for match in _PROGRAM.finditer(text)]
    if not starts:
        return 0, 0, 0, 0
    answer = _ANSWER.search(text)
    ran = min(sum(call.executed for call in trajectory.calls), len(starts))
    return len(starts), ran, 1, int(answer is not None and answer.start() < starts[0])
