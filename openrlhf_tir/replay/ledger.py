"""Ledger: what became of every prompt, one line per event, append-only. The answer to "was anything lost or trained
twice?"

    ledger(format, run)    the first line: whose it is
    issued ---> trained(step)      provisional until committed(step)
           ---> filtered(reason)
           ---> failed(reason)     for good, after train.max_reissues
           ---> requeued(reason)   this attempt is over, the prompt will be issued again as attempt + 1
                                   (failed once, stale, surplus, open at a crash)
    committed(step, upto)          a checkpoint of that step is safe on disk; it describes the events before line `upto`
    rolled_back(upto)              a resume from such a checkpoint: the events from line `upto` on never happened in the
                                   surviving lineage, and those before it are committed
    finished                       the run ended as it should: nothing is open any more

Keys are (epoch, prompt, attempt). Every line ends with a checksum of itself and of the line before (CRC-32), so that a
line that is changed, lost or moved is found; a checkpoint holds a `Mark`: how many lines and bytes it stands on, and
their digest. A resume compares the bytes with the mark instead of parsing them, so memory holds what is open at the cut
and what came after it, however long the file. The lines' format is in lines.py; `audit` (audit.py) replays the file.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import xxhash

from ..errors import ConservationError, PipelineError
from ..logs.jsonl import cut_torn_line
from ..sizes import room
from ..types import TERMINAL, GroupKey
from .audit import Audit as Audit
from .audit import audit as audit
from .lines import BEGINNING as BEGINNING
from .lines import FORMAT, Mark, checksum_of, compare, hash_file, last_line, read_lines, run_of, seal

log = logging.getLogger(__name__)


class Ledger:
    """Appends events. Opening an existing file cuts a half-written last line (a crash); `rolled_back` says where it
    goes on.

    Memory: prompts that are open or wait to be issued again; after a resume also those issued between the cut and the
    crash."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines, self._bytes, self._check = 0, 0, 0
        self.counts: Counter[str] = Counter()
        self._open: set[GroupKey] = set()
        self._attempts: dict[tuple[int, int], int] = {}
        self._first_attempt = 0
        """The first attempt of a prompt that is not in `_attempts`."""
        self._digest = xxhash.xxh3_128()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            cut_torn_line(path)
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as e:
            raise PipelineError(_refused(path, str(e))) from e
        if size := path.stat().st_size:
            self.run = run_of(path) or ""
            self.lines, self._bytes = hash_file(path, self._digest, size), size
            self._check = checksum_of(last_line(path))
        else:
            self.run = uuid.uuid4().hex
            self._append("ledger", None, format=FORMAT, run=self.run)
        self.counts.clear()

    def next_attempt(self, epoch: int, prompt: int) -> int:
        """The attempt number a new issue of this prompt gets: above every earlier one, rolled back or not."""
        last = self._attempts.get((epoch, prompt))
        return self._first_attempt if last is None else last + 1

    def issued(self, key: GroupKey, version: int) -> None:
        if key in self._open:
            raise ConservationError(
                f"Prompt {key} was issued twice without an end in between."
                f" This is a bug in the loop; the ledger is {self.path}."
            )
        self._open.add(key)
        self._attempts[key.epoch, key.prompt] = key.attempt
        self._append("issued", key, v=version)

    def ended(self, event: str, key: GroupKey, **facts) -> None:
        """`event` is one of TERMINAL. Raises ConservationError for a key that is not open."""
        if event not in TERMINAL:
            raise ValueError(f"{event!r} is no terminal event. Known: {', '.join(sorted(TERMINAL))}.")
        if key not in self._open:
            raise ConservationError(
                f"Prompt {key} ended as {event!r} but is not open: it would be counted twice."
                f" The ledger is {self.path}."
            )
        self._open.remove(key)
        if event != "requeued":
            self._attempts.pop((key.epoch, key.prompt), None)
        self._append(event, key, **facts)

    @property
    def ends(self) -> int:
        """Attempts that ended since this process opened the ledger."""
        return sum(self.counts[event] for event in TERMINAL)

    def mark(self) -> Mark:
        """This place: a checkpoint that is taken now stands on what was appended so far."""
        attempts = tuple((epoch, prompt, attempt) for (epoch, prompt), attempt in self._attempts.items())
        return Mark(
            self.run, self.lines, self._bytes, self._digest.hexdigest(), self._check, attempts, self._first_attempt
        )

    def committed(self, step: int, upto: int) -> None:
        self._append("committed", None, step=step, upto=upto)

    def finished(self) -> None:
        """The run ended by itself. From here on an open prompt is the audit's error; a resume takes this line back."""
        self._append("finished", None)
        self.try_to_sync()

    def rolled_back(self, mark: Mark, open_keys: list[GroupKey]) -> int:
        """The surviving lineage is what stands before `mark`; `open_keys` were rolling at that cut and stay to be
        ended.

        Returns how many lines after the mark are damaged: they are taken back with the rest. Raises CheckpointDamaged
        when those before it are."""
        compare(self.path, mark)
        self._attempts = {(epoch, prompt): attempt for epoch, prompt, attempt in mark.attempts}
        self._first_attempt, damaged = mark.first_attempt, 0
        # the whole file, maybe days of it:
        # an attempt's number is below the count of lines after the first, so nothing is read
        if mark == BEGINNING:
            self._first_attempt = self.lines - 1
        for line in read_lines(self.path, mark.bytes, mark.lines, mark.check) if mark != BEGINNING else ():
            damaged += not line.sound
            if line.row and line.row["e"] == "issued":
                epoch, prompt, attempt = line.row["k"]
                self._attempts[epoch, prompt] = max(attempt, self._attempts.get((epoch, prompt), -1))
        if damaged:
            log.warning(
                "%s: %d lines after line %d were changed, removed or moved. The resume takes back all of them.",
                self.path,
                damaged,
                mark.lines,
            )
        self._append("rolled_back", None, upto=mark.lines)
        self._open = set(open_keys)
        try:
            self.sync()
        except OSError as e:
            raise PipelineError(_refused(self.path, str(e))) from e
        return damaged

    def check_open(self, keys: Iterable[GroupKey]) -> None:
        """`keys` are all groups that the pipeline has in hand. Raises ConservationError when they are not those that
        are open here."""
        keys = set(keys)
        lost, unknown = sorted(self._open - keys), sorted(keys - self._open)
        if lost or unknown:
            said = [
                f"{what} {', '.join(map(str, some[:5]))}"
                for what, some in (("lost:", lost), ("ended, yet in flight:", unknown))
                if some
            ]
            raise ConservationError(
                f"The ledger and the pipeline disagree about {len(lost) + len(unknown)} groups (epoch/prompt/attempt;"
                f" {'; '.join(said)}). Resume from the last checkpoint and report this with {self.path}."
            )

    def _append(self, event: str, key: GroupKey | None, **facts) -> None:
        row = {"t": round(time.time(), 3), "e": event} | ({"k": list(key)} if key else {}) | facts
        line, check = seal(json.dumps(row), self._check)
        try:
            written = os.write(self._fd, line)
        except OSError as e:
            raise PipelineError(_refused(self.path, str(e))) from e
        if written < len(line):
            raise PipelineError(_refused(self.path, "the disk is full"))
        self._check = check
        self._digest.update(line)
        self._bytes += len(line)
        self.lines += 1
        self.counts[event] += 1

    def sync(self) -> None:
        """What was appended is on disk; may be called from a thread. Raises OSError."""
        os.fsync(self._fd)

    def try_to_sync(self) -> None:
        """For lines that no checkpoint stands on: a disk that refuses them ends nothing, and is said. The next `sync`
        tries them again."""
        try:
            self.sync()
        except OSError as e:
            log.error("%s: its last lines may not be on disk (%s; %s).", self.path, e, room(self.path.parent))

    def close(self) -> None:
        self.try_to_sync()
        os.close(self._fd)


def _refused(path: Path, fault: str) -> str:
    return (
        f"{path} cannot be written ({fault}; {room(path.parent)})."
        " A run without its ledger could train a prompt twice: make room, then --resume."
    )
