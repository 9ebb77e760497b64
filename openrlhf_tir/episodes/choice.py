"""Selection: which trajectories of a group are used, when more were dispatched than are wanted.

The n earliest *dispatched* valid ones, never the first finished: short answers finish first, so taking those would train on short ones.

    index    0      1       2      3 | 4      5            n = 4, rollout.oversample = 2
    ended    valid  failed  valid  - | valid  valid
    used     yes    no      yes    ? | yes    only if 3 fails too

An infrastructure fault frees its place for the next index; a trajectory that is given up for being slow (deadline, straggler) keeps its
place empty, because filling it with a faster one is choosing by length. So nothing about a trajectory's length decides whether it is used,
as far as faults do not depend on it (those that do, such as a tool's time-outs in long answers, no choice among the rest can undo).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..types import Trajectory

SLOW = frozenset({"deadline", "straggler", "early_stop"})
"""Reasons of failure by which a trajectory keeps its place: it was given up, and no other may take it."""


LENGTH_FACTS = ("length_used", "length_replacements", "length_first_done")
"""The meter's names in a group's stats; see `length_facts`."""


class Selection(NamedTuple):
    """`members`: all that belong to the group, in order of dispatch: used, failed and slow. `settled`: waiting longer changes nothing."""

    members: list[Trajectory]
    settled: bool


def select(ended: Sequence[Trajectory | None], n: int) -> Selection:
    """`ended[i]` is the trajectory dispatched as i-th, None while it runs."""
    members: list[Trajectory] = []
    places = n
    for trajectory in ended:
        if places == 0:
            break
        if trajectory is None:
            return Selection(members, settled=False)
        members.append(trajectory)
        places -= trajectory.failed is None or trajectory.failed in SLOW
    return Selection(members, settled=True)


def hopeless(ended: Sequence[Trajectory | None], n: int, min_valid: int, accuracy_range: tuple[float, float]) -> bool:
    """Whether the accuracy filter will drop the group, however the rest ends.

    Of the first n, d are valid by now and c of them correct; u <= n - d more will be used, of which 0 to u are correct. So the accuracy
    will lie between c / n and (c + n - d) / n, reached at u = n - d: to drop for sure, the whole range must lie outside of (lo, hi).

    Training is not biased by it, as the group would have been dropped anyway. What is measured of dropped groups is: the trajectories given
    up are the slow ones, so their mean length is too low and, with it, whatever goes along with length.
    """
    lo, hi = accuracy_range
    valid = [t for t in ended[:n] if t is not None and t.failed is None]
    correct = sum(t.parts["correct"] for t in valid)
    return len(valid) >= min_valid and ((correct + n - len(valid)) / n <= lo or correct / n >= hi)


def length_facts(members: Sequence[Trajectory], finished: Sequence[Trajectory], n: int) -> dict[str, float]:
    """The meter: mean response tokens of what is used, of the replacements among it (index >= n), and of the n that finished first.

    `finished` is in order of time. Over many groups `length_used` and `length_replacements` agree when selection is unbiased;
    `length_first_done` is lower, by the bias that taking the first finished would have had.
    """
    used = [t for t in members if t.failed is None]
    facts = (used, [t for t in used if t.index >= n], [t for t in finished if t.failed is None][:n])
    return {name: sum(len(t.token_ids) for t in some) / len(some) for name, some in zip(LENGTH_FACTS, facts, strict=True) if some}
