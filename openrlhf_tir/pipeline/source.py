"""Source: which prompt is issued next. Failed and interrupted prompts come before new ones; each issue gets a fresh key."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..replay.ledger import Ledger
from ..types import GroupKey, Task
from .ports import Prompts


@dataclass(slots=True)
class Flight:
    """One issued group. `dispatch` orders all flights; `version` is the policy's at dispatch, the oldest a token can have."""

    key: GroupKey
    dispatch: int
    version: int
    reissues: int = 0
    started_at: float = 0.0


class Source:
    def __init__(self, prompts: Prompts, ledger: Ledger) -> None:
        self.prompts, self.ledger = prompts, ledger
        self.dispatched = 0
        self._retries: deque[tuple[int, int, int]] = deque()
        self._ahead: tuple[int, int] | None = None

    @property
    def ready(self) -> bool:
        """Whether `issue` has something to give."""
        if not self._retries and self._ahead is None:
            self._ahead = self.prompts.next()
        return bool(self._retries) or self._ahead is not None

    def issue(self, version: int, now: float) -> tuple[Flight, Task]:
        """Take the next prompt and enter it into the ledger; only when `ready`."""
        if self._retries:
            epoch, prompt, reissues = self._retries.popleft()
        else:
            (epoch, prompt), reissues, self._ahead = self._ahead, 0, None
        key = GroupKey(epoch, prompt, self.ledger.next_attempt(epoch, prompt))
        self.ledger.issued(key, version)
        self.dispatched += 1
        return Flight(key, self.dispatched, version, reissues, now), self.prompts.task(prompt)

    def requeue(self, flight: Flight, reason: str, *, counts: bool = True) -> None:
        """End this attempt and issue the prompt again. `counts`: towards train.max_reissues (a crash of ours does not)."""
        self.ledger.ended("requeued", flight.key, reason=reason)
        self._retries.append((flight.key.epoch, flight.key.prompt, flight.reissues + counts))

    def state(self) -> dict:
        return {
            "stream": self.prompts.state(),
            "ahead": self._ahead,
            "retries": list(self._retries),
            "dispatched": self.dispatched,
        }

    def restore(self, state: dict) -> None:
        self.prompts.restore(state["stream"])
        self._ahead = tuple(state["ahead"]) if state["ahead"] else None
        self._retries = deque(tuple(r) for r in state["retries"])
        self.dispatched = state["dispatched"]
