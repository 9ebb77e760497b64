"""Source: which prompt is issued next. Failed and interrupted prompts come before new ones; each issue gets a fresh
key.

A prompt that is issued again keeps its place in line (its dispatch number): with staleness 0 the batches of a run with
faults are then those of the run without, in the same order.

Environments with shares have them in the batches, not only among what is sampled: for a group that a filter drops,
another prompt of the same environment is issued out of turn. MAX_INSTEAD bounds it, so that an environment of which
nothing is kept cannot have every slot."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import Any

from ..ports import Prompts
from ..replay.buffer import Place
from ..replay.ledger import Ledger
from ..types import GroupKey, GroupMeta, PromptOutcome, Task

MAX_INSTEAD = 8
"""Prompts issued one after the other in place of one that was dropped: the share holds where a filter keeps a group in
nine or more."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One issued group. `dispatch` is its prompt's place in line; `version` is the engines' at this issue, the oldest a
    token can have; `started_at` in the event loop's seconds."""

    key: GroupKey
    dispatch: int
    version: int
    reissues: int = 0
    started_at: float = 0.0
    env: str = ""
    instead: int = 0
    """How many groups were dropped one after the other in whose place this one is."""

    @property
    def place(self) -> Place:
        """The order in which groups are trained."""
        return self.version, self.dispatch


class Source:
    def __init__(self, prompts: Prompts, ledger: Ledger) -> None:
        self.prompts, self.ledger = prompts, ledger
        self.dispatched = 0
        self._retries: list[tuple[int, int, int, int, int]] = []
        """A heap of (dispatch, epoch, prompt, reissues, instead): attempts to repeat, the oldest dispatched first."""
        self._instead: deque[tuple[int, int, int]] = deque()
        """(epoch, prompt, instead): in place of groups that were dropped."""
        self._ended: list[tuple[int, PromptOutcome]] = []
        """Dispatch numbers and outcomes of the groups that ended since the last batch was trained."""
        self.replaces: bool | None = None
        """Whether the prompts name a replacement for a dropped group; None until they were asked for the first time."""

    @property
    def ready(self) -> bool:
        """Whether `issue` has something to give."""
        return bool(self._retries or self._instead) or self.prompts.more()

    def issue(self, version: int, now: float) -> tuple[Flight, Task]:
        """Take the next prompt and enter it into the ledger; only when `ready`."""
        if self._retries:
            dispatch, epoch, prompt, reissues, instead = heapq.heappop(self._retries)
        else:
            self.dispatched += 1
            reissues, dispatch, instead = 0, self.dispatched, 0
            if self._instead:
                epoch, prompt, instead = self._instead.popleft()
            else:
                following = self.prompts.next()
                assert following is not None, "only when ready"
                epoch, prompt = following
        key = GroupKey(epoch, prompt, self.ledger.next_attempt(epoch, prompt))
        self.ledger.issued(key, version)
        task = self.prompts.task(prompt)
        return Flight(key, dispatch, version, reissues, now, task.env, instead), task

    def requeue(self, flight: Flight, reason: str, *, counts: bool = True) -> None:
        """End this attempt and issue the prompt again. `counts`: towards train.max_reissues (our crashes do not)."""
        self.ledger.ended("requeued", flight.key, reason=reason)
        repeated = (flight.dispatch, flight.key.epoch, flight.key.prompt, flight.reissues + counts, flight.instead)
        heapq.heappush(self._retries, repeated)

    @property
    def oldest_retry(self) -> int | None:
        """The lowest dispatch number of the attempts to repeat; None if there are none."""
        return self._retries[0][0] if self._retries else None

    def dropped(self, flight: Flight) -> None:
        """A filter dropped the group: another prompt of its environment takes its place in the batch, unless the
        prompts are through."""
        if not self.prompts.more() or flight.instead >= MAX_INSTEAD:
            return
        another = self.prompts.in_place_of(flight.key.prompt)
        self.replaces = another is not None
        if another is not None:
            self._instead.append((*another, flight.instead + 1))

    def ended(self, flight: Flight, meta: GroupMeta | None) -> None:
        """Record that a group ended for good: trained, filtered or failed (None). It counts with the next batch."""
        right = [] if meta is None else meta.correct
        self._ended.append((flight.dispatch, PromptOutcome(flight.key.prompt, sum(right), len(right))))

    def batch_trained(self) -> None:
        """Report the outcomes since the last batch to the prompts, in the order of dispatch.

        Called at a step boundary: without staleness the draws must not depend on which group ended first.
        """
        ended, self._ended = sorted(self._ended), []
        self.prompts.learned([outcome for _, outcome in ended])

    def state(self) -> dict[str, Any]:
        return {
            "stream": self.prompts.state(),
            "ended": [(dispatch, *outcome) for dispatch, outcome in self._ended],
            "retries": [(e, p, r, d, i) for d, e, p, r, i in sorted(self._retries)],
            "instead": list(self._instead),
            "dispatched": self.dispatched,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.prompts.restore(state["stream"])
        # Checkpoints of older versions have no dispatch number in front, or no list at all.
        ended = [(0, *row)[-4:] for row in state.get("ended", ())]
        self._ended = [(dispatch, PromptOutcome(*outcome)) for dispatch, *outcome in ended]
        # Rows of older versions end with the dispatch number.
        self._retries = [(r[3], r[0], r[1], r[2], r[4] if len(r) > 4 else 0) for r in state["retries"]]
        heapq.heapify(self._retries)
        self._instead = deque(tuple(i) for i in state.get("instead", ()))  # not in checkpoints of older versions
        if state.get("ahead"):  # in those a prompt was drawn before it was issued
            self._instead.append((*state["ahead"], 0))
        self.dispatched = state["dispatched"]
