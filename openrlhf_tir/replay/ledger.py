"""Ledger: what became of every prompt, one line per event, append-only. The answer to "was anything lost or trained twice?"

    issued ---> trained(step)      provisional until committed(step)
           ---> filtered(reason)
           ---> failed(reason)     for good, after train.max_reissues
           ---> requeued(reason)   this attempt is over, the prompt will be issued again as attempt + 1
                                   (failed once, stale, surplus, open at a crash)
    committed(step, upto)          a checkpoint of that step is safe on disk; it describes the events before line `upto`
    finished                       the run came to its end: nothing may be open
    rolled_back(upto)              a resume from such a checkpoint: the events from line `upto` on never happened in the surviving
                                   lineage, and those before it are committed

Keys are (epoch, prompt, attempt). Memory holds open keys only; `audit` reads the file.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ConservationError
from ..types import TERMINAL, GroupKey


class Ledger:
    """Appends events. Opening an existing file cuts a half-written last line (a crash) and counts the rest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = 0
        self.counts: Counter[str] = Counter()
        self._open: set[GroupKey] = set()
        self._attempts: dict[tuple[int, int], int] = {}
        if path.exists():
            self._read()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1)

    def _read(self) -> None:
        raw = self.path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) != len(raw):
            os.truncate(self.path, len(whole))
        for line in whole.splitlines():
            self.lines += 1
            row = json.loads(line)
            if row["e"] == "issued":
                epoch, prompt, attempt = row["k"]
                self._attempts[epoch, prompt] = max(attempt, self._attempts.get((epoch, prompt), -1))

    def next_attempt(self, epoch: int, prompt: int) -> int:
        """The attempt number a new issue of this prompt gets: above every earlier one, rolled back or not."""
        return self._attempts.get((epoch, prompt), -1) + 1

    def issued(self, key: GroupKey, version: int) -> None:
        if key in self._open:
            raise ConservationError(f"Prompt {key} was issued twice without an end in between. This is a bug in the loop; the ledger is {self.path}.")
        self._open.add(key)
        if key.attempt:
            self._attempts[key.epoch, key.prompt] = key.attempt
        self._append("issued", key, v=version)

    def ended(self, event: str, key: GroupKey, **facts) -> None:
        """`event` is one of TERMINAL. Raises ConservationError for a key that is not open."""
        if event not in TERMINAL:
            raise ValueError(f"{event!r} is no terminal event. Known: {', '.join(sorted(TERMINAL))}.")
        if key not in self._open:
            raise ConservationError(f"Prompt {key} ended as {event!r} but is not open: it would be counted twice. The ledger is {self.path}.")
        self._open.remove(key)
        if event == "requeued":
            self._attempts[key.epoch, key.prompt] = key.attempt
        self._append(event, key, **facts)

    @property
    def ends(self) -> int:
        """Attempts that ended since this process opened the ledger."""
        return sum(self.counts[event] for event in TERMINAL)

    def committed(self, step: int, upto: int) -> None:
        self._append("committed", None, step=step, upto=upto)

    def finished(self) -> None:
        """The run came to its end. A resume that goes on takes this line back with all others after its cut."""
        self._append("finished", None)
        self.sync()

    def rolled_back(self, upto: int, open_keys: list[GroupKey]) -> None:
        """The surviving lineage is the first `upto` lines; `open_keys` were rolling at that cut and stay to be ended."""
        self._append("rolled_back", None, upto=upto)
        self._open = set(open_keys)
        self.sync()

    def check_open(self, keys: Iterable[GroupKey]) -> None:
        """`keys` are all groups that the pipeline has in hand. Raises ConservationError when they are not those that are open here."""
        keys = set(keys)
        lost, unknown = sorted(self._open - keys), sorted(keys - self._open)
        if lost or unknown:
            said = [f"{what} {', '.join(map(str, some[:5]))}" for what, some in (("lost:", lost), ("ended, yet in flight:", unknown)) if some]
            raise ConservationError(
                f"The ledger and the pipeline disagree about {len(lost) + len(unknown)} groups (epoch/prompt/attempt; {'; '.join(said)}). "
                f"Resume from the last checkpoint and report this with {self.path}."
            )

    def _append(self, event: str, key: GroupKey | None, **facts) -> None:
        row = {"t": round(time.time(), 3), "e": event} | ({"k": list(key)} if key else {}) | facts
        self._file.write(json.dumps(row) + "\n")
        self.lines += 1
        self.counts[event] += 1

    def sync(self) -> None:
        """What was appended is on disk; may be called from a thread (every line leaves our buffer when it is written)."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self.sync()
        self._file.close()


@dataclass(slots=True)
class Audit:
    """The surviving lineage. `trained` [(epoch, prompt)] in order; `open` are issued and not ended; `errors` are sentences."""

    trained: list[tuple[int, int]] = field(default_factory=list)
    committed_trained: list[tuple[int, int]] = field(default_factory=list)
    provisional: int = 0
    """Prompts that ended after the last checkpoint's cut: a resume takes them back."""
    waiting: list[tuple[int, int]] = field(default_factory=list)
    """Prompts that are to be issued again and have not been."""
    ended: Counter = field(default_factory=Counter)
    open: list[GroupKey] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    rollbacks: int = 0
    finished: bool = False
    """The run came to its end, and no resume has gone on since."""


def surviving(path: Path) -> tuple[list[dict], int]:
    """The events of the surviving lineage, and how many roll-backs there were."""
    text = path.read_text()
    kept, rollbacks = [], 0
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines()):  # a run that is being killed may have half a line
        row = json.loads(line) | {"line": number}
        if row["e"] == "rolled_back":
            kept = [r for r in kept if r["line"] < row["upto"]]
            rollbacks += 1
        kept.append(row)
    return kept, rollbacks


def audit(path: Path) -> Audit:
    """Replays the ledger: in the surviving lineage no attempt ends twice, and every prompt of an epoch has at most one end.

    With the run over, `open`, `waiting` and `provisional` empty and no `errors`, every prompt that was issued has exactly one committed end.
    """
    rows, rollbacks = surviving(path)
    out = Audit(rollbacks=rollbacks)
    open_keys: dict[GroupKey, int] = {}
    ended: dict[tuple[int, int], str] = {}
    requeued: set[tuple[int, int]] = set()
    provisional: list[tuple[int, tuple[int, int], str]] = []
    for row in rows:
        out.finished = row["e"] == "finished"
        if out.finished:
            continue
        if "k" not in row:  # committed or rolled_back: what stands before `upto` is safe
            out.committed_trained += [p for line, p, event in provisional if line < row["upto"] and event == "trained"]
            provisional = [entry for entry in provisional if entry[0] >= row["upto"]]
            continue
        key = GroupKey(*row["k"])
        prompt = (key.epoch, key.prompt)
        if row["e"] == "issued":
            if key in open_keys or prompt in ended:
                out.errors.append(f"line {row['line']}: {key} was issued although the prompt is {ended.get(prompt, 'still open')}")
            open_keys[key] = row["line"]
            requeued.discard(prompt)
            continue
        if open_keys.pop(key, None) is None:
            out.errors.append(f"line {row['line']}: {key} ended as {row['e']} without being open")
        out.ended[row["e"] if row["e"] == "trained" else f"{row['e']}({row.get('reason', '')})"] += 1
        if row["e"] == "requeued":
            requeued.add(prompt)
            continue
        ended[prompt] = row["e"]
        provisional.append((row["line"], prompt, row["e"]))
        if row["e"] == "trained":
            out.trained.append(prompt)
    twice = [p for p, k in Counter(out.trained).items() if k > 1]
    out.errors += [f"prompt {p} of epoch {e} was trained more than once" for e, p in twice]
    out.open, out.waiting, out.provisional = sorted(open_keys), sorted(requeued), len(provisional)
    if out.finished and out.open:
        out.errors.append(f"the run is finished, but {len(out.open)} prompts were issued and never ended: {', '.join(map(str, out.open[:5]))}")
    return out
