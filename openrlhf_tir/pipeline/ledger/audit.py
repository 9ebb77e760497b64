"""The audit: replay a run's ledger, report what became of every prompt and what is wrong with the file.

In the surviving lineage no attempt ends twice, every prompt of an epoch has at most one end, and no line was changed
since it was written. The file is read twice: first for the roll-backs, which say which lines survive, then for the
events on these lines. Memory is one byte per prompt and epoch, eight bytes per trained prompt, and the open prompts;
the lines themselves are not kept.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from ...telemetry.jsonl import whole_lines
from ...types import TERMINAL, GroupKey
from .lines import FORMAT, Line, parse, read_lines

Prompt = tuple[int, int]
"""(epoch, index in the data set)."""
MAX_ERRORS = 100
"""Errors that an audit keeps. A file that is not a ledger has one per line."""
MAX_NAMED_GROUPS = 5
"""Groups of each kind that an error names."""
PROMPT_BITS = 40
"""Bits of a packed prompt that hold the index; the epoch is in the bits above."""


class PromptList:
    """A list of prompts that takes eight bytes for each."""

    def __init__(self, packed: Iterable[int] = ()) -> None:
        self._packed = array("q", packed)

    def add(self, prompt: Prompt) -> None:
        """Append a prompt."""
        epoch, index = prompt
        self._packed.append(epoch << PROMPT_BITS | index)

    def first(self, count: int) -> PromptList:
        """Return a new list of the first `count` prompts."""
        return PromptList(self._packed[:count])

    def __len__(self) -> int:
        return len(self._packed)

    def __iter__(self) -> Iterator[Prompt]:
        return map(_unpack, self._packed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PromptList | list) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))


def _unpack(packed: int) -> Prompt:
    return packed >> PROMPT_BITS, packed & ((1 << PROMPT_BITS) - 1)


class _PromptEnds:
    """How every prompt of every epoch ended, in one byte each."""

    NAMES = ("", "trained", "filtered", "failed")
    """Index: the byte that is stored. Empty: not ended."""

    def __init__(self) -> None:
        self._epochs: dict[int, bytearray] = {}

    def __getitem__(self, prompt: Prompt) -> str:
        epoch, index = prompt
        ends = self._epochs.get(epoch, b"")
        return self.NAMES[ends[index]] if index < len(ends) else ""

    def __setitem__(self, prompt: Prompt, end: str) -> None:
        epoch, index = prompt
        ends = self._epochs.setdefault(epoch, bytearray())
        if index >= len(ends):
            # Grow by a quarter more than needed, so that a growing index costs constant time on average.
            ends.extend(bytes(index + 1 - len(ends) + len(ends) // 4))
        ends[index] = self.NAMES.index(end)


class _IssueIntervals:
    """How many prompts were issued between two issues of the same prompt. Eight bytes per prompt."""

    def __init__(self) -> None:
        self._last = array("q")
        """Prompt -> number of its last issue, counted over all prompts from 1; 0 before the first."""
        self._issues = 0
        self._longest = 0
        self.prompts = 0
        """Prompts that were issued at least once."""

    def record(self, prompt: int) -> None:
        """Record that a prompt was issued."""
        self._issues += 1
        if prompt >= len(self._last):
            self._last.extend([0] * (prompt + 1 - len(self._last) + len(self._last) // 4))
        last = self._last[prompt]
        self._last[prompt] = self._issues
        self.prompts += last == 0
        self._longest = max(self._longest, self._issues - last)

    def longest_wait(self) -> int:
        """Return the longest interval, in issues: before a prompt's first issue, between two, or since its last."""
        since_last = max((self._issues - last for last in self._last if last), default=0)
        return max(self._longest, since_last)


class AuditCode(StrEnum):
    """What an audit finds wrong. Tests and scripts assert these, never the message."""

    EMPTY = "empty"
    """The file has no line."""
    UNKNOWN_FORMAT = "unknown_format"
    """The file was written by another version of this program."""
    NO_HEADER = "no_header"
    """The first line does not say which run the file belongs to."""
    UNREADABLE = "unreadable"
    """A line is not an event."""
    DAMAGED = "damaged"
    """A line's checksum does not fit its text and the line before it."""
    UNKNOWN_EVENT = "unknown_event"
    """A line's event is not one that a ledger has."""
    ISSUED_AGAIN = "issued_again"
    """A prompt was issued although it had ended or was open."""
    ENDED_UNISSUED = "ended_unissued"
    """An attempt ended without being open."""
    TRAINED_AGAIN = "trained_again"
    """A prompt was trained more than once in an epoch."""
    LOST = "lost"
    """The run is finished and prompts are open."""
    MORE = "more"
    """There are more than MAX_ERRORS errors."""


class AuditError(NamedTuple):
    """One thing that is wrong with a ledger.

    Attributes:
        code: The kind of error.
        message: A sentence for people.
        line: Number of the line as an editor counts it, from 1; None if the error is not about one line.
    """

    code: AuditCode
    message: str
    line: int | None = None

    def __str__(self) -> str:
        return self.message if self.line is None else f"line {self.line}: {self.message}"


@dataclass(slots=True)
class Audit:
    """What became of the prompts of a run, in the surviving lineage.

    Attributes:
        trained: Trained prompts in order.
        committed_trained: Those of `trained` that a checkpoint holds.
        provisional: Number of prompts that ended after the last checkpoint's cut; a resume takes them back.
        waiting: Prompts whose last attempt was requeued and that were not issued again yet.
        ended: Number of attempts by end: "trained", "filtered(REASON)", ...
        open: Attempts that were issued and have not ended.
        errors: What is wrong; at most MAX_ERRORS and one that says that there are more.
        rollbacks: Number of roll-backs in the file.
        prompts: Prompts that were issued at least once.
        longest_wait: Largest number of prompts issued between two issues of the same prompt. If it is bounded, no
            prompt starves.
        finished: True if the run ended by itself and was not resumed since.
    """

    trained: PromptList = field(default_factory=PromptList)
    committed_trained: PromptList = field(default_factory=PromptList)
    provisional: int = 0
    waiting: list[Prompt] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    open: list[GroupKey] = field(default_factory=list)
    errors: list[AuditError] = field(default_factory=list)
    rollbacks: int = 0
    prompts: int = 0
    longest_wait: int = 0
    finished: bool = False

    def add_error(self, code: AuditCode, message: str, line: int | None = None) -> None:
        """Record an error.

        Args:
            code: The kind of error.
            message: A sentence.
            line: Number of the line, from 0, if the error is about one.
        """
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(AuditError(code, message, None if line is None else line + 1))
        elif len(self.errors) == MAX_ERRORS:
            self.errors.append(AuditError(AuditCode.MORE, f"There are more errors; these are the first {MAX_ERRORS}."))


class _Range(NamedTuple):
    """Lines of a file, by number from 0: `start` inclusive, `end` exclusive."""

    start: int
    end: int


def _surviving_ranges(path: Path) -> tuple[list[_Range], int]:
    """Return the lines of the surviving lineage in order, and the number of roll-backs in the file."""
    ranges: list[_Range] = []
    start = 0
    rollbacks = 0
    number = 0
    for number, line in enumerate(whole_lines(path)):
        # The search for the bytes is cheap and rules out almost every line, so few are parsed here.
        if b'"rolled_back"' not in line:
            continue
        row = parse(line)
        if row is None or row["e"] != "rolled_back":
            continue
        ranges.append(_Range(start, number))
        ranges = [_Range(a, min(b, row["upto"])) for a, b in ranges if a < row["upto"]]
        start = number
        rollbacks += 1
    return [*ranges, _Range(start, number + 1)], rollbacks


def _lines_with_survival(path: Path, ranges: list[_Range]) -> Iterator[tuple[Line, bool]]:
    """Yield every line, and whether it belongs to the surviving lineage."""
    remaining = iter(ranges)
    current = next(remaining)
    for line in read_lines(path):
        while line.number >= current.end and (following := next(remaining, None)):
            current = following
        yield line, current.start <= line.number < current.end


class Event(NamedTuple):
    """An event of the surviving lineage.

    Attributes:
        number: Line number, from 0.
        row: The line's fields.
    """

    number: int
    row: dict[str, Any]


def events(path: Path) -> Iterator[Event]:
    """Yield the events of the surviving lineage, one at a time. Lines that cannot be read are left out."""
    ranges, _ = _surviving_ranges(path)
    for line, survives in _lines_with_survival(path, ranges):
        if line.row and survives:
            yield Event(line.number, line.row)


def audit(path: Path) -> Audit:
    """Replay a ledger.

    After a run that ended by itself, `open` and `errors` are empty and `provisional` is 0: then every prompt that was
    issued has exactly one committed end, or waits to be issued again.
    """
    ranges, rollbacks = _surviving_ranges(path)
    result = Audit(rollbacks=rollbacks)
    replay = _Replay(result)
    has_checksums = False
    is_empty = True
    for line, survives in _lines_with_survival(path, ranges):
        is_empty = False
        if line.number == 0:
            has_checksums = _check_header(line, result)
        if not survives:
            continue
        if line.row is None:
            result.add_error(
                AuditCode.UNREADABLE, "It cannot be read: it was changed since it was written.", line.number
            )
            continue
        if has_checksums and not line.sound:
            result.add_error(AuditCode.DAMAGED, "It or the line before it was changed, removed or moved.", line.number)
        replay.apply(line.number, line.row)
    if is_empty:
        result.add_error(AuditCode.EMPTY, "The ledger is empty: it was cut, or never written.")
    replay.finish()
    return result


def _check_header(line: Line, result: Audit) -> bool:
    """Check the first line of a ledger. Return True if the file's lines have checksums."""
    header = line.row or {}
    if header.get("e") != "ledger":
        message = (
            "It does not say which run the ledger belongs to: it was changed or removed, or an earlier version of this"
            " program wrote the file."
        )
        result.add_error(AuditCode.NO_HEADER, message, line.number)
        return False
    if header.get("format") != FORMAT:
        message = f"The ledger's format is {header.get('format')!r}; this program reads {FORMAT}."
        result.add_error(AuditCode.UNKNOWN_FORMAT, message, line.number)
    return True


class _Replay:
    """Applies the events of the surviving lineage, in order, to an `Audit`."""

    def __init__(self, result: Audit) -> None:
        self.result = result
        self.open: set[GroupKey] = set()
        self.ends = _PromptEnds()
        self.requeued: set[Prompt] = set()
        self.intervals = _IssueIntervals()
        self.uncommitted: list[tuple[int, bool]] = []
        """(line number, whether it trained) of the ends that no checkpoint holds yet."""
        self.committed = 0
        """Number of `result.trained` that a checkpoint holds."""

    def apply(self, number: int, row: dict[str, Any]) -> None:
        """Apply one event, which stands on line `number`, from 0."""
        event = row["e"]
        if event == "issued":
            self._issued(number, GroupKey(*row["k"]))
        elif event in TERMINAL:
            self._ended(number, event, GroupKey(*row["k"]), row.get("reason", ""))
        elif event == "finished":
            self.result.finished = True
        elif event in ("committed", "rolled_back"):
            # Both say that a checkpoint holds the events before line `upto`.
            self._commit(row["upto"])
            if event == "rolled_back":
                self.result.finished = False
        elif event != "ledger":
            self.result.add_error(AuditCode.UNKNOWN_EVENT, f"{event!r} is not an event of a ledger.", number)

    def _commit(self, upto: int) -> None:
        safe = sum(line < upto for line, _ in self.uncommitted)
        self.committed += sum(trained for _, trained in self.uncommitted[:safe])
        del self.uncommitted[:safe]

    def _issued(self, number: int, key: GroupKey) -> None:
        prompt = key[:2]
        if key in self.open or self.ends[prompt]:
            state = self.ends[prompt] or "still open"
            self.result.add_error(AuditCode.ISSUED_AGAIN, f"{key} was issued although the prompt is {state}.", number)
        self.open.add(key)
        if prompt not in self.requeued:
            self.intervals.record(key.prompt)
        self.requeued.discard(prompt)

    def _ended(self, number: int, event: str, key: GroupKey, reason: str) -> None:
        result = self.result
        prompt = key[:2]
        if key not in self.open:
            result.add_error(AuditCode.ENDED_UNISSUED, f"{key} ended as {event} without being open.", number)
        self.open.discard(key)
        result.ended[event if event == "trained" else f"{event}({reason})"] += 1
        if event == "requeued":
            self.requeued.add(prompt)
            return
        if event == "trained":
            if self.ends[prompt] == "trained":
                message = f"Prompt {key.prompt} of epoch {key.epoch} was trained more than once."
                result.add_error(AuditCode.TRAINED_AGAIN, message, number)
            result.trained.add(prompt)
        self.ends[prompt] = event
        self.uncommitted.append((number, event == "trained"))

    def finish(self) -> None:
        """Fill in what is known only after the last event."""
        result = self.result
        result.open = sorted(self.open)
        result.waiting = sorted(self.requeued)
        result.provisional = len(self.uncommitted)
        result.committed_trained = result.trained.first(self.committed)
        result.prompts = self.intervals.prompts
        result.longest_wait = self.intervals.longest_wait()
        if result.finished and result.open:
            names = ", ".join(map(str, result.open[:MAX_NAMED_GROUPS]))
            result.add_error(
                AuditCode.LOST,
                f"The run is finished, yet {len(result.open)} prompts are open (epoch/prompt/attempt: {names}): they"
                " were issued and lost.",
            )
