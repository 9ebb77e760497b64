"""Audit: a run's ledger, replayed -> what became of every prompt, and what is wrong with it.

In the surviving lineage no attempt ends twice, and every prompt of an epoch has at most one end; no line was changed
since it was written. Two passes over the file: which lines survive the roll-backs, then what they say. Memory: one byte
per prompt and epoch, eight per trained prompt, and what is open; not the lines.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, overload

from ..logs.jsonl import whole_lines
from ..types import TERMINAL, GroupKey
from .lines import FORMAT, parse, read_lines

Prompt = tuple[int, int]
"""(epoch, index in the data set)."""
SAID = 100
"""Errors that are written out; a ledger of another kind of file has one per line."""
PROMPT_BITS = 40


class Prompts(Sequence[Prompt]):
    """An immutable-looking list of prompts in eight bytes each."""

    def __init__(self) -> None:
        self._packed = array("q")

    def add(self, prompt: Prompt) -> None:
        self._packed.append(prompt[0] << PROMPT_BITS | prompt[1])

    def first(self, n: int) -> Prompts:
        out = Prompts()
        out._packed = self._packed[:n]
        return out

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, i: int) -> Prompt: ...
    @overload
    def __getitem__(self, i: slice) -> list[Prompt]: ...
    def __getitem__(self, i):
        return list(map(_unpacked, self._packed[i])) if isinstance(i, slice) else _unpacked(self._packed[i])

    def __iter__(self) -> Iterator[Prompt]:
        return map(_unpacked, self._packed)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    def __repr__(self) -> str:
        return repr(list(self))


def _unpacked(number: int) -> Prompt:
    return number >> PROMPT_BITS, number & ((1 << PROMPT_BITS) - 1)


class _Ends:
    """The end of every prompt of every epoch, one byte each."""

    NAMES = ("", "trained", "filtered", "failed")

    def __init__(self) -> None:
        self._epochs: dict[int, bytearray] = {}

    def __getitem__(self, prompt: Prompt) -> str:
        ends = self._epochs.get(prompt[0], b"")
        return self.NAMES[ends[prompt[1]]] if prompt[1] < len(ends) else ""

    def __setitem__(self, prompt: Prompt, end: str) -> None:
        ends = self._epochs.setdefault(prompt[0], bytearray())
        if prompt[1] >= len(ends):
            ends.extend(bytes(prompt[1] + 1 - len(ends) + len(ends) // 4))
        ends[prompt[1]] = self.NAMES.index(end)


class _Turns:
    """When each prompt was issued last, counted in issues of any; eight bytes each."""

    def __init__(self) -> None:
        self._last = array("q")
        self.issues = self.prompts = self.longest = 0

    def issued(self, prompt: int) -> None:
        self.issues += 1
        if prompt >= len(self._last):
            self._last.extend([0] * (prompt + 1 - len(self._last) + len(self._last) // 4))
        last, self._last[prompt] = self._last[prompt], self.issues
        self.prompts += last == 0
        self.longest = max(self.longest, self.issues - last)

    def longest_wait(self) -> int:
        """Issues between two of a prompt, before its first, or since its last: the most of any that was issued."""
        return max(self.longest, max((self.issues - last for last in self._last if last), default=0))


@dataclass(slots=True)
class Audit:
    """The surviving lineage. `trained` [(epoch, prompt)] in order; `open`: issued, not ended; `errors`: sentences."""

    trained: Prompts = field(default_factory=Prompts)
    committed_trained: Prompts = field(default_factory=Prompts)
    """Those of `trained` that a checkpoint holds."""
    provisional: int = 0
    """Prompts that ended after the last checkpoint's cut: a resume takes them back."""
    waiting: list[Prompt] = field(default_factory=list)
    """Prompts that are to be issued again and have not been."""
    ended: Counter = field(default_factory=Counter)
    open: list[GroupKey] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    rollbacks: int = 0
    prompts: int = 0
    """Prompts that were issued at least once."""
    longest_wait: int = 0
    """The most prompts that were issued between two issues of the same one: nobody starves where it is bounded."""
    finished: bool = False
    """The run ended by itself, and was not resumed since."""

    def wrong(self, sentence: str) -> None:
        if len(self.errors) < SAID:
            self.errors.append(sentence)
        elif len(self.errors) == SAID:
            self.errors.append(f"and more: the first {SAID} are said")


def surviving(path: Path) -> tuple[list[tuple[int, int]], int]:
    """Which lines survive, as [from, to) in order, and how many roll-backs there were."""
    kept: list[tuple[int, int]] = []
    start = rollbacks = number = 0
    for number, line in enumerate(whole_lines(path)):
        # the first test is cheap, and true for few
        if b'"rolled_back"' in line and (row := parse(line)) and row["e"] == "rolled_back":
            kept.append((start, number))
            kept = [(a, min(b, row["upto"])) for a, b in kept if a < row["upto"]]
            start = number
            rollbacks += 1
    return [*kept, (start, number + 1)], rollbacks


class Event(NamedTuple):
    """A line of the ledger that could be read."""

    number: int
    row: dict[str, Any]


def events(path: Path) -> Iterator[Event]:
    """The events of the surviving lineage, one at a time; lines that cannot be read are left out."""
    ranges, _ = surviving(path)
    left = iter(ranges)
    now = next(left)
    for line in read_lines(path):
        while line.number >= now[1] and (after := next(left, None)):
            now = after
        if line.row and now[0] <= line.number < now[1]:
            yield Event(line.number, line.row)


def audit(path: Path) -> Audit:
    """With the run over, `open` and `provisional` empty and no `errors`, every prompt that was issued has exactly one
    committed end, or waits."""
    ranges, rollbacks = surviving(path)
    out = Audit(rollbacks=rollbacks)
    replay = _Replay(out)
    left = iter(ranges)
    now = next(left)
    sealed, line = False, None
    for line in read_lines(path):
        while line.number >= now[1] and (after := next(left, None)):
            now = after
        if line.number == 0:
            head = line.row or {}
            sealed = head.get("e") == "ledger"
            if sealed and head.get("format") != FORMAT:
                out.wrong(f"line 1: the ledger's format is {head.get('format')!r}, this program knows {FORMAT}")
            elif not sealed:
                out.wrong(
                    "line 1 does not say whose ledger this is: it was changed, removed, or written by an earlier"
                    " version of this program"
                )
        if not now[0] <= line.number < now[1]:
            continue
        if line.row is None:
            out.wrong(f"line {line.number + 1} cannot be read: it was changed since it was written")
        elif sealed and not line.sound:
            out.wrong(
                f"line {line.number + 1}, or the one before it, was changed, removed or moved since it was written"
            )
        if line.row is not None:
            replay.event(line.number, line.row)
    if line is None:
        out.wrong("the ledger is empty: it was cut, or written by nobody")
    replay.end()
    return out


class _Replay:
    """The events of the surviving lineage, in order, into an Audit."""

    def __init__(self, out: Audit) -> None:
        self.out = out
        self.open: dict[GroupKey, int] = {}
        self.ended = _Ends()
        self.requeued: set[Prompt] = set()
        self.turns = _Turns()
        self.since_commit: list[tuple[int, bool]] = []
        """(line, whether it trained) of the ends that no checkpoint holds yet."""
        self.committed = 0
        """How many of `trained` a checkpoint holds."""

    def event(self, number: int, row: dict[str, Any]) -> None:
        out = self.out
        if row["e"] in ("committed", "rolled_back"):
            safe = sum(at < row["upto"] for at, _ in self.since_commit)
            self.committed += sum(trained for _, trained in self.since_commit[:safe])
            del self.since_commit[:safe]
            out.finished = out.finished and row["e"] == "committed"
        elif row["e"] == "finished":
            out.finished = True
        elif row["e"] == "issued":
            self.issued(number, GroupKey(*row["k"]))
        elif row["e"] in TERMINAL:
            self.end_of(number, row["e"], GroupKey(*row["k"]), row.get("reason", ""))
        elif row["e"] != "ledger":
            out.wrong(f"line {number + 1}: {row['e']!r} is no event of a ledger")

    def issued(self, number: int, key: GroupKey) -> None:
        prompt = key[:2]
        if key in self.open or self.ended[prompt]:
            self.out.wrong(
                f"line {number + 1}: {key} was issued although the prompt is {self.ended[prompt] or 'still open'}"
            )
        self.open[key] = number
        if prompt not in self.requeued:
            self.turns.issued(key.prompt)
        self.requeued.discard(prompt)

    def end_of(self, number: int, event: str, key: GroupKey, reason: str) -> None:
        out, prompt = self.out, key[:2]
        if self.open.pop(key, None) is None:
            out.wrong(f"line {number + 1}: {key} ended as {event} without being open")
        out.ended[event if event == "trained" else f"{event}({reason})"] += 1
        if event == "requeued":
            self.requeued.add(prompt)
            return
        if event == "trained":
            if self.ended[prompt] == "trained":
                out.wrong(f"prompt {prompt[1]} of epoch {prompt[0]} was trained more than once")
            out.trained.add(prompt)
        self.ended[prompt] = event
        self.since_commit.append((number, event == "trained"))

    def end(self) -> None:
        out = self.out
        out.open, out.waiting, out.provisional = sorted(self.open), sorted(self.requeued), len(self.since_commit)
        out.committed_trained = out.trained.first(self.committed)
        out.prompts, out.longest_wait = self.turns.prompts, self.turns.longest_wait()
        if out.finished and out.open:
            said = ", ".join(map(str, out.open[:5]))
            out.wrong(
                f"the run is finished, yet {len(out.open)} prompts are open (epoch/prompt/attempt:"
                f" {said}): they were issued and lost"
            )
