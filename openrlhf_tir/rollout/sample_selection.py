"""Decide which trajectories of a group are used, if a fault or a limit ended some of them.

The length of a trajectory must have no influence on whether it is used, as far as faults do not depend on length:

    fault of one trajectory    A session that could not be opened, a reply that cannot be read, a sandbox, a mismatch of
                               tokens and text. It costs that trajectory. A fault before the first token is independent
                               of length. A fault per call hits trajectories with more calls more often, and no choice
                               among the others can undo that.
    shared fault               The engine died or its weights were refused; the server of the sessions went down. It
                               ends everything *unfinished* at that moment, so the survivors are exactly the short
                               answers: their law is L given L <= t, whatever the cause. It costs all trajectories that
                               shared the engine or server, finished ones too (`invalidated`): sharing was settled at
                               dispatch, so it is independent of length.
    limit                      group_deadline_s is not a fault. It cuts the law of lengths at the same place in every
                               group, as max_new_tokens does. Issuing such a group again would repeat the cut and keep
                               only draws that are short.
    user code                  A reward, filter, protocol, environment class or agent file that fails on one trajectory
                               fails the whole group (`failure_of`): the bug would choose the samples otherwise.

A group that is left with fewer than rollout.min_valid valid trajectories fails too.

Why a group with a shared fault is issued again as a whole, instead of keeping the finished trajectories and sampling
the others anew: n new samples have the law without the fault. Kept ones have the law of L given L <= t, and new ones
beside them do not make up for it, because they may be short again: P(L <= t) * law(L | L <= t) + P(L > t) * law(L).

One bias remains: an attempt that ended *before* the fault is kept. At r faults per second the mean length moves, to
first order, by -r * Cov(longest of the group, mean of the group), with lengths in seconds; it would move by -r * Var(L)
if finished trajectories were kept. For n exponential lengths the first is H_n / n of the second, a fifth at n = 16.
With train.full_determinism_enable it is zero, because the new attempt draws the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..errors import (
    USER_CODE_REASONS,
    EngineError,
    EngineGone,
    EnvLost,
    RequestRefused,
    TaskRefused,
    TokenDrift,
    WeightsUnverified,
)
from ..types import Group, Trajectory

DEADLINE = "deadline"
EARLY_STOP = "early_stop"
GIVEN_UP = frozenset({DEADLINE, EARLY_STOP})
"""Reasons of failure of trajectories that were cancelled although nothing had failed."""

ENGINE_FAULTS = frozenset({EngineError.reason, EngineGone.reason, WeightsUnverified.reason, "aborted"})
"""Reasons of failure of the engine, which all trajectories of a group share: one of them ends the group."""

OWN_FAULTS = USER_CODE_REASONS | {TokenDrift.reason, RequestRefused.reason, TaskRefused.reason}
"""Reasons of failure that lie in the content of the trajectory or of its row. However many fail for them, nothing was
shared."""


def invalidated(
    ended: Sequence[Trajectory | None], order: Sequence[int], server_of: Mapping[int, str]
) -> dict[int, str]:
    """Return the trajectories that a shared fault costs, finished and unfinished ones: index -> reason.

    A fault is shared if its reason says so: a fault of the engine is shared by all, EnvLost by those with a session on
    that server. It is also shared by its effect: it ended every trajectory of the group, or on a server, that was
    unfinished, and at least two. The whole group is looked at first, whichever servers it used, then each server. Two
    separate faults that happen to come last are taken for a shared one as well; that costs another attempt, also of
    samples that ended well, and selects no trajectory by length.

    Args:
        ended: Trajectory by index; None if it did not end.
        order: Indices in the order in which they ended.
        server_of: Index -> environment server of its session. An index without a session shares the engine only.
    """
    engine_faults = [trajectory.failed for trajectory in ended if trajectory and trajectory.failed in ENGINE_FAULTS]
    if engine_faults:
        return dict.fromkeys(range(len(ended)), engine_faults[0])
    reasons = [trajectory.failed for index in order if (trajectory := ended[index])]
    if None not in ended and _last_ones_failed(reasons):
        return dict.fromkeys(range(len(ended)), _cause(reasons))
    lost: dict[int, str] = {}
    for server in set(server_of.values()):
        indices = [index for index, holder in server_of.items() if holder == server]
        is_running = any(ended[index] is None for index in indices)
        reasons = [trajectory.failed for index in order if index in indices and (trajectory := ended[index])]
        if EnvLost.reason in reasons or (not is_running and _last_ones_failed(reasons)):
            lost |= dict.fromkeys(indices, _cause(reasons))
    return lost


def _last_ones_failed(reasons: Sequence[str | None]) -> bool:
    """Return True if at least the last two to end failed, but not all: one event may have ended all that still ran.

    A reward that fails on two samples is not a fault that they share, even if they end last.

    Args:
        reasons: Reason of failure of each trajectory, None for a valid one, in the order in which they ended.
    """
    num_failed_last = 0
    for reason in reversed(reasons):
        if reason is None or reason in GIVEN_UP | OWN_FAULTS:
            break
        num_failed_last += 1
    return 2 <= num_failed_last < len(reasons)


def _cause(reasons: Sequence[str | None]) -> str:
    """Return the reason to report: EnvLost, which is the most precise, or else the most frequent one."""
    if EnvLost.reason in reasons:
        return EnvLost.reason
    return Counter(reason for reason in reasons if reason and reason not in GIVEN_UP | OWN_FAULTS).most_common(1)[0][0]


def failure_of(group: Group, min_valid: int, *, user_code_fails_group: bool = True) -> str | None:
    """Return why the group as a whole cannot be used; None if it can be.

    Args:
        group: The group.
        min_valid: Valid trajectories that it needs. If it has fewer, the reason is its most frequent fault.
        user_code_fails_group: True if one trajectory that user code failed is a reason, as in training. A reward that
            raises for wrong answers would otherwise leave a group of right ones.
    """
    faults = Counter(trajectory.failed for trajectory in group.trajectories if trajectory.failed)
    if user_code_fails_group:
        method_faults = Counter({reason: count for reason, count in faults.items() if reason in USER_CODE_REASONS})
        if method_faults:
            return method_faults.most_common(1)[0][0]
    if len(group.valid) >= min_valid:
        return None
    return faults.most_common(1)[0][0]


def will_be_filtered(ended: Sequence[Trajectory | None], min_valid: int, accuracy_range: tuple[float, float]) -> bool:
    """Return True if the accuracy filter will drop the group however its remaining trajectories end.

    Of the n samples d are valid by now and c of these are correct. At most n - d more will be valid, of which none or
    all may be correct, so the final accuracy lies between c / n and (c + n - d) / n. The group is dropped for certain
    if this whole interval is outside of the range.

    Stopping early does not bias training, because the group would have been dropped anyway. It does bias statistics of
    dropped groups: the trajectories that are given up are the slow ones, so their mean length is too low.

    Args:
        ended: [n] trajectory by index; None while it runs.
        min_valid: Valid trajectories that a group needs; before that it is not judged.
        accuracy_range: filter.accuracy_range, both bounds exclusive.
    """
    low, high = accuracy_range
    n = len(ended)
    valid = [trajectory for trajectory in ended if trajectory is not None and trajectory.failed is None]
    if len(valid) < min_valid:
        return False
    correct = sum(trajectory.parts["correct"] for trajectory in valid)
    return (correct + n - len(valid)) / n <= low or correct / n >= high
