"""Selection: which trajectories of a group are used, when more were dispatched than are wanted, or a fault has ended
some.

The n earliest *dispatched* valid ones, never the first finished: short answers finish first, so taking those would
train on short ones.

    index    0      1       2      3 | 4      5            n = 4, rollout.oversample = 2
    ended    valid  failed  valid  - | valid  valid
    used     yes    no      yes    ? | yes    only if 3 fails too

An infrastructure fault frees its place for the next index; a trajectory that is given up for being slow (deadline,
straggler) keeps its place empty, because filling it with a faster one is choosing by length. So nothing about a
trajectory's length decides whether it is used, as far as faults do not depend on it. Which do:

    a fault of one trajectory    a session that could not be opened, a reply that cannot be read, one sandbox, a
                                 tokens/text mismatch: it costs that trajectory. One before the first token is
                                 independent of length; one per call hits the trajectory with more calls more often,
                                 which no choice among the others can undo.
    a fault of what they share   the engine died or its weights were refused; the server that held their sessions went
                                 down. It ends whatever is *unfinished* at that moment, so the survivors are exactly the
                                 short ones: the law of those is L given L <= t, whatever the cause. It costs all who
                                 shared it, the finished ones too (`voided`): then sharing, which was settled at
                                 dispatch, decides, and not length.
    a limit                      group_deadline_s, straggler_s: no fault. It cuts the law of lengths at the same place
                                 in every group, like max_new_tokens; to issue such a group again would repeat it, and
                                 keep the draws that are short.

Why the group is issued again as a whole, instead of keeping the finished and sampling the rest anew: given a fault at
t, n new samples have the law without the fault. Finished ones that are kept have that of L given L <= t, and new ones
beside them do not make up for it, because they may be short again: P(L <= t) * law(L | L <= t) + P(L > t) * law(L).
What a re-issue cannot undo is that an attempt which ended *before* the fault is kept: at a rate of r faults per second
the mean moves by -r * Cov(longest of the group, mean of the group), to first order, against -r * Var(L) when the
finished are kept (lengths in seconds); for n exponential lengths the first is H_n / n of the second, a fifth at n = 16.
With rollout.per_request_seeds it is zero: the new attempt draws the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..errors import METHOD_REASONS, EngineError, EngineGone, EnvLost, RequestRefused, TokenDrift, WeightsUnverified
from ..types import Trajectory

SLOW = frozenset({"deadline", "straggler", "early_stop"})
"""Reasons of failure by which a trajectory keeps its place: it was given up, and no other may take it."""

ENGINE_FAULTS = frozenset({EngineError.reason, EngineGone.reason, WeightsUnverified.reason, "aborted"})
"""Reasons of failure that are the engine's, which a group's trajectories share: one is the end of the group."""

ITS_OWN = METHOD_REASONS | {TokenDrift.reason, RequestRefused.reason}
"""Reasons of failure that lie in what the trajectory itself says: however many fail so, nothing was shared."""

LENGTH_FACTS = ("length_used", "length_replacements", "length_first_done")
"""The meter's names in a group's stats; see `length_facts`."""


class Selection(NamedTuple):
    """`members`: all of the group, in order of dispatch: used, failed and slow. `settled`: waiting changes nothing."""

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


def voided(ended: Sequence[Trajectory | None], order: Sequence[int], server_of: Mapping[int, str]) -> dict[int, str]:
    """Index -> reason, of the trajectories that a shared fault costs, finished and unfinished.

    ended: by index, None where it did not end.  order: the indices in the order in which they ended.
    server_of: the environment server of each session; an index without one shares the engine only.

    A fault is shared when it says so itself (of the engine: everybody; EnvLost: those with a session on that server),
    or by what it does: of those on a server, or of the whole group, it ended everybody who was unfinished, two at
    least. Two faults of their own that happen to be the last ones are taken for a shared one as well; that costs a
    re-issue, and chooses nobody by length."""
    if engine := [t.failed for t in ended if t and t.failed in ENGINE_FAULTS]:
        return dict.fromkeys(range(len(ended)), engine[0])
    found: dict[int, str] = {}
    servers = {server: [i for i in order if server_of.get(i) == server] for server in sorted(set(server_of.values()))}
    for server, there in servers.items():
        running = any(ended[i] is None for i, s in server_of.items() if s == server)
        reasons = [t.failed for i in there if (t := ended[i])]
        if EnvLost.reason in reasons or (not running and _ended_all_at_once(reasons)):
            found |= dict.fromkeys((i for i, s in server_of.items() if s == server), _cause(reasons))
    reasons = [t.failed for i in order if (t := ended[i])]
    if None not in ended and _ended_all_at_once(reasons):
        found = dict.fromkeys(range(len(ended)), _cause(reasons))
    return found


def _ended_all_at_once(reasons: Sequence[str | None]) -> bool:
    """Whether at least the last two to end failed, but not all did: whoever was unfinished at the first of these
    faults.

    A reward that fails on two samples is no fault that they share, even if they are the last.
    """
    tail = 0
    while tail < len(reasons) and reasons[-1 - tail] is not None and reasons[-1 - tail] not in SLOW | ITS_OWN:
        tail += 1
    return 2 <= tail < len(reasons)


def _cause(reasons: Sequence[str | None]) -> str:
    """EnvLost, which says most, or else the commonest fault."""
    return (
        EnvLost.reason
        if EnvLost.reason in reasons
        else Counter(r for r in reasons if r and r not in SLOW | ITS_OWN).most_common(1)[0][0]
    )


def hopeless(ended: Sequence[Trajectory | None], n: int, min_valid: int, accuracy_range: tuple[float, float]) -> bool:
    """Whether the accuracy filter will drop the group, however the rest ends.

    Of the first n, d are valid by now and c of them correct; u <= n - d more will be used, of which 0 to u are correct.
    So the accuracy will lie between c / n and (c + n - d) / n, reached at u = n - d: to drop for sure, the whole range
    must lie outside of (lo, hi).

    Training is not biased by it, as the group would have been dropped anyway. What is measured of dropped groups is:
    the trajectories given up are the slow ones, so their mean length is too low, and what goes along with length."""
    lo, hi = accuracy_range
    valid = [t for t in ended[:n] if t is not None and t.failed is None]
    correct = sum(t.parts["correct"] for t in valid)
    return len(valid) >= min_valid and ((correct + n - len(valid)) / n <= lo or correct / n >= hi)


def length_facts(members: Sequence[Trajectory], finished: Sequence[Trajectory], n: int) -> dict[str, float]:
    """The meter: mean response tokens of what is used, of the replacements among it (index >= n), and of the n that
    finished first.

    `finished` is in order of time. Over many groups `length_used` and `length_replacements` agree when selection is
    unbiased; `length_first_done` is lower, by the bias that taking the first finished would have had.
    """
    used = [t for t in members if t.failed is None]
    facts = (used, [t for t in used if t.index >= n], [t for t in finished if t.failed is None][:n])
    return {
        name: sum(t.response_tokens for t in some) / len(some)
        for name, some in zip(LENGTH_FACTS, facts, strict=True)
        if some
    }
