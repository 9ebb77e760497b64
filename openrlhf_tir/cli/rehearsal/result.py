"""The result of a rehearsal: its episodes, and every distinct fault once."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...types import Group


@dataclass(slots=True)
class Fault:
    """One thing that failed, in user code or outside of it.

    Attributes:
        words: The error, with file and line if it is user code.
        traceback: The traceback of the user's code; empty if it raised nothing.
        during: The episodes, or the step, in which it failed.
        in_user_code: False for a server, a verifier or a time limit of which user code is not known to be the cause.
    """

    words: str
    traceback: str
    during: list[str]
    in_user_code: bool


@dataclass(slots=True)
class Rehearsal:
    """What was played and what failed.

    Attributes:
        groups: By environment, the episodes of its first row, in the order of `scripts`.
        scripts: By environment, what each episode tests.
        notes: What could not be tried, and why.
        untried: True if user code is a part of it.
        episodes: Number of episodes.
    """

    groups: dict[str, Group] = field(default_factory=dict)
    scripts: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    untried: bool = False
    episodes: int = 0
    _faults: dict[str, Fault] = field(default_factory=dict)

    def failed(self, words: str, traceback: str, during: str, *, in_user_code: bool) -> None:
        """Record a fault. The same fault in another episode is added to the first."""
        fault = self._faults.setdefault(words, Fault(words, traceback, [], in_user_code))
        if during not in fault.during:
            fault.during.append(during)

    @property
    def faults(self) -> list[Fault]:
        """The faults of user code first, and of these the ones that raised: others may only have waited for them."""
        return sorted(self._faults.values(), key=lambda fault: (not fault.in_user_code, not fault.traceback))
