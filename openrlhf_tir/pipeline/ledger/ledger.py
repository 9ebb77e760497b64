"""The ledger: an append-only file with one line per event of a prompt's life.

It answers whether a prompt was lost or trained twice, also after crashes and resumes.

    ledger(format, run)    first line: the run that the file belongs to
    issued ---> trained(step)      step is the version before the update; provisional until a checkpoint whose mark
                                   stands behind this line is complete
           ---> filtered(reason)   dropped by a filter
           ---> failed(reason)     failed for good: after MAX_RETRIES, after two attempts if the environment refuses
                                   the row, at once by the user's own code or a gradient that is not finite
           ---> requeued(reason)   this attempt is over; the prompt is issued again as attempt + 1
                                   (failed once, surplus, open at a crash)
    committed(step, upto)          such a checkpoint is safe on disk; it describes the events before line `upto`. For
                                   the audit only: a resume reads the checkpoint itself
    rolled_back(upto)              a resume from such a checkpoint: the events from line `upto` on are no part of the
                                   surviving lineage, and those before it are committed
    finished                       the run ended by itself; no prompt is open

Keys are (epoch, prompt, attempt). A checkpoint stores a `Mark` (lines.py): how many lines and bytes of the ledger it
stands on, and their digest. A resume compares that digest instead of parsing the file, so its memory holds the prompts
that are open at the mark and the events after it, however long the file is.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import xxhash

from ...errors import ConservationError, PipelineError
from ...machine.sizes import room
from ...telemetry.jsonl import cut_torn_line
from ...types import GroupKey, GroupState
from .audit import MAX_NAMED_GROUPS
from .audit import Audit as Audit
from .audit import audit as audit
from .lines import BEGINNING as BEGINNING
from .lines import FORMAT, Mark, checksum_of, compare, hash_file, last_line, read_lines, run_of, seal

log = logging.getLogger(__name__)


class Ledger:
    """Appends events to a run's ledger file.

    Opening an existing file cuts a half-written last line, which a crash leaves; `rolled_back` then decides where the
    run continues. Memory holds the prompts that are open or wait to be issued again; after a resume also those that
    were issued between the mark and the crash.

    Attributes:
        path: The file.
        run: Identity of the run, from the first line; empty if that line cannot be read.
        lines: Number of lines in the file.
        ends: Number of attempts that ended since this process opened the file.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises:
            PipelineError: The file cannot be written.
        """
        self.path = path
        self.lines = 0
        self.ends = 0
        self._bytes = 0
        self._checksum = 0
        self._open: set[GroupKey] = set()
        self._attempts: dict[tuple[int, int], int] = {}
        """(epoch, prompt) -> last attempt, of the prompts that have not ended."""
        self._first_attempt = 0
        """First attempt of a prompt that is not in `_attempts`."""
        self._digest = xxhash.xxh3_128()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            cut_torn_line(path)
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as e:
            raise _write_error(path, str(e)) from e
        size = path.stat().st_size
        if size:
            self.run = run_of(path) or ""
            self.lines = hash_file(path, self._digest, size)
            self._bytes = size
            self._checksum = checksum_of(last_line(path))
        else:
            self.run = uuid.uuid4().hex
            self._append("ledger", None, format=FORMAT, run=self.run)

    def next_attempt(self, epoch: int, prompt: int) -> int:
        """Return the attempt number of the prompt's next issue: above every earlier one, rolled back or not."""
        last = self._attempts.get((epoch, prompt))
        return self._first_attempt if last is None else last + 1

    def issued(self, key: GroupKey, version: int) -> None:
        """Record that an attempt starts.

        Args:
            key: The attempt.
            version: Policy version of the engines.

        Raises:
            ConservationError: The attempt is open already.
            PipelineError: The line could not be written (a full disk).
        """
        if key in self._open:
            raise ConservationError(
                f"Prompt {key} was issued twice without an end in between."
                f" This is a bug in the loop; the ledger is {self.path}."
            )
        self._open.add(key)
        self._attempts[key.epoch, key.prompt] = key.attempt
        self._append("issued", key, v=version)

    def ended(self, event: str, key: GroupKey, **details: Any) -> None:
        """Record that an attempt ended.

        Args:
            event: How it ended: one of `types.TERMINAL`.
            key: The attempt.
            details: More fields of the line, such as the step or the reason.

        Raises:
            ConservationError: The attempt is not open.
            PipelineError: The line could not be written (a full disk).
        """
        if key not in self._open:
            raise ConservationError(
                f"Prompt {key} ended as {str(event)!r} but is not open, so it would be counted twice."
                f" The ledger is {self.path}."
            )
        self._open.remove(key)
        if event != GroupState.REQUEUED:
            self._attempts.pop((key.epoch, key.prompt), None)
        self._append(event, key, **details)
        self.ends += 1

    def mark(self) -> Mark:
        """Return the current end of the file: a checkpoint that is taken now stands on the events so far."""
        return Mark(
            run=self.run,
            lines=self.lines,
            bytes=self._bytes,
            digest=self._digest.hexdigest(),
            check=self._checksum,
            attempts=tuple((epoch, prompt, attempt) for (epoch, prompt), attempt in self._attempts.items()),
            first_attempt=self._first_attempt,
        )

    def committed(self, step: int, upto: int) -> None:
        """Record that the checkpoint of `step`, which describes the events before line `upto`, is safe on disk.

        Raises:
            PipelineError: The line could not be written (a full disk).
        """
        self._append("committed", None, step=step, upto=upto)

    def finished(self) -> None:
        """Record that the run ended by itself. From here on an open prompt is an error; a resume takes this back.

        Raises:
            PipelineError: The line could not be written (a full disk).
        """
        self._append("finished", None)
        self.try_to_sync()

    def rolled_back(self, mark: Mark, open_keys: list[GroupKey]) -> int:
        """Continue from a checkpoint: only the events before its mark survive.

        Args:
            mark: Where the checkpoint cut the ledger.
            open_keys: Attempts that were open at the mark. They stay open, for the caller to end.

        Returns:
            Number of damaged lines after the mark. They are rolled back with the others.

        Raises:
            CheckpointDamaged: A line before the mark was changed.
            PipelineError: The disk refuses the new line.
        """
        compare(self.path, mark)
        self._attempts = {(epoch, prompt): attempt for epoch, prompt, attempt in mark.attempts}
        if mark == BEGINNING:
            # An attempt's number is below the number of lines after the first, so the file, which may hold days of
            # events, need not be read.
            self._first_attempt = self.lines - 1
            damaged = 0
        else:
            self._first_attempt = mark.first_attempt
            damaged = self._read_attempts_after(mark)
        self._append("rolled_back", None, upto=mark.lines)
        self._open = set(open_keys)
        try:
            self.sync()
        except OSError as e:
            raise _write_error(self.path, str(e)) from e
        return damaged

    def _read_attempts_after(self, mark: Mark) -> int:
        """Learn the attempt numbers that were used after the mark. Return the number of damaged lines there."""
        damaged = 0
        for line in read_lines(self.path, mark.bytes, mark.lines, mark.check):
            damaged += not line.sound
            if line.row and line.row["e"] == "issued":
                epoch, prompt, attempt = line.row["k"]
                self._attempts[epoch, prompt] = max(attempt, self._attempts.get((epoch, prompt), -1))
        if damaged:
            log.warning(
                "%s: %d lines after line %d were changed, removed or moved. The resume rolls all of them back.",
                self.path,
                damaged,
                mark.lines,
            )
        return damaged

    def check_open(self, keys: Iterable[GroupKey]) -> None:
        """Compare the open attempts with those that the pipeline knows.

        Args:
            keys: Every attempt that the pipeline has under way.

        Raises:
            ConservationError: They differ: an attempt was lost, or ended while the pipeline still has it.
        """
        keys = set(keys)
        lost = sorted(self._open - keys)
        ended = sorted(keys - self._open)
        if not lost and not ended:
            return
        differences = []
        if lost:
            differences.append(f"lost: {', '.join(map(str, lost[:MAX_NAMED_GROUPS]))}")
        if ended:
            differences.append(f"ended, yet in flight: {', '.join(map(str, ended[:MAX_NAMED_GROUPS]))}")
        raise ConservationError(
            f"The ledger and the pipeline disagree about {len(lost) + len(ended)} groups (epoch/prompt/attempt;"
            f" {'; '.join(differences)}). Resume from the last checkpoint and report this with {self.path}."
        )

    def _append(self, event: str, key: GroupKey | None, **details: Any) -> None:
        row = {"t": round(time.time(), 3), "e": event} | ({"k": list(key)} if key else {}) | details
        line, checksum = seal(json.dumps(row), self._checksum)
        try:
            written = os.write(self._fd, line)
        except OSError as e:
            raise _write_error(self.path, str(e)) from e
        if written < len(line):
            raise _write_error(self.path, "the disk is full")
        self._checksum = checksum
        self._digest.update(line)
        self._bytes += len(line)
        self.lines += 1

    def sync(self) -> None:
        """Wait until everything appended so far is on disk. May be called from a thread.

        Raises:
            OSError: The disk refuses it.
        """
        os.fsync(self._fd)

    def try_to_sync(self) -> None:
        """Like `sync`, but only log what the disk refuses: for lines that no checkpoint stands on.

        The next `sync` tries them again.
        """
        try:
            self.sync()
        except OSError as e:
            log.error("%s: its last lines may not be on disk (%s; %s).", self.path, e, room(self.path.parent))

    def close(self) -> None:
        """Sync and close the file."""
        self.try_to_sync()
        os.close(self._fd)


def _write_error(path: Path, fault: str) -> PipelineError:
    return PipelineError(
        f"{path} cannot be written ({fault}; {room(path.parent)})."
        " A run without its ledger could train a prompt twice: make room, then --resume."
    )
