"""Source: which prompt is issued next. Failed and interrupted prompts come before new ones; each issue gets a fresh
key.

A prompt that is issued again keeps its place in line (its dispatch number): with staleness 0 the batches of a run with
faults are then those of the run without, in the same order.

Environments with shares have them in the batches, not only among what is sampled: for a group that a filter drops,
another prompt of the same environment is issued out of turn. MAX_INSTEAD bounds it, so that an environment of which
nothing is kept cannot have every slot."""

from __future__ import annotations

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


@dataclass(slots=True)
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
        self._retries: deque[tuple[int, int, int, int, int]] = deque()
        """(epoch, prompt, reissues, dispatch, instead)"""
        self._instead: deque[tuple[int, int, int]] = deque()
        """(epoch, prompt, instead): in place of groups that were dropped."""
        self._ended: list[PromptOutcome] = []
        """Outcomes of the groups that ended since the last batch was trained."""

    @property
    def ready(self) -> bool:
        """Whether `issue` has something to give."""
        return bool(self._retries or self._instead) or self.prompts.more()

    def issue(self, version: int, now: float) -> tuple[Flight, Task]:
        """Take the next prompt and enter it into the ledger; only when `ready`."""
        if self._retries:
            epoch, prompt, reissues, dispatch, instead = self._retries.popleft()
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
        self._retries.append(
            (flight.key.epoch, flight.key.prompt, flight.reissues + counts, flight.dispatch, flight.instead)
        )

    def dropped(self, flight: Flight) -> None:
        """A filter dropped the group: another prompt of its environment takes its place in the batch, unless the
        prompts are through."""
        if (
            self.prompts.more()
            and flight.instead < MAX_INSTEAD
            and (another := self.prompts.in_place_of(flight.key.prompt))
        ):
            self._instead.append((*another, flight.instead + 1))

    def ended(self, key: GroupKey, meta: GroupMeta | None) -> None:
        """A group ended for good, trained, filtered or failed (None): it counts with the next batch."""
        right = [] if meta is None else meta.correct
        self._ended.append(PromptOutcome(key.prompt, sum(right), len(right)))

    def batch_trained(self) -> None:
        """What ended until now is learned: at the end of a step, so that a run without staleness does not depend on
        which group ended first."""
        self.prompts.learned(self._ended)
        self._ended = []

    def state(self) -> dict[str, Any]:
        return {
            "stream": self.prompts.state(),
            "ended": self._ended,
            "retries": list(self._retries),
            "instead": list(self._instead),
            "dispatched": self.dispatched,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.prompts.restore(state["stream"])
        self._ended = [PromptOutcome(*said) for said in state.get("ended", ())]  # not in checkpoints of older versions
        # four in checkpoints of older versions
        self._retries = deque((*r[:4], r[4] if len(r) > 4 else 0) for r in state["retries"])
        self._instead = deque(tuple(i) for i in state.get("instead", ()))  # not in checkpoints of older versions
        if state.get("ahead"):  # in those a prompt was drawn before it was issued
            self._instead.append((*state["ahead"], 0))
        self.dispatched = state["dispatched"]
