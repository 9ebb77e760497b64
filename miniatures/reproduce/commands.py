"""Commands of this program, each run once, in a process of its own with a deadline.

    RUN_DIR/..             what the command writes
    RUN_DIR.train.log      what it printed
    RUN_DIR.train.json     the command's Mark: how it was asked, how long it took so far, whether it ended well

A command is not run again if it finished, was asked in the same words, with the same settings, of the same weights, and
what it wrote is still there. If it was interrupted, it goes on from its checkpoint, where it has one. If it was asked
otherwise, or its model is another by now, what it wrote is deleted and it is run anew. A run that another comparison
has finished is shared: RUN_DIR is then a link to it, and it has no mark of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from openrlhf_tir.errors import ReproductionFailed
from openrlhf_tir.evaluation.settings import weights_of
from openrlhf_tir.machine.files import replace_text

from ..end_process import end_process

LOOK_S = 2.0
"""Seconds between two looks at what the running command has logged; its end is noticed at once."""
STOP_S = 90.0
"""Seconds that a command has to end by itself when told to: a checkpoint (train.stop_grace_s), its actors and Ray."""
LAST_BYTES = 2000
"""Bytes at the end of a log that are looked through for what the command said last."""


class Command(NamedTuple):
    """A command and what it reads and writes.

    Attributes:
        words: What follows `openrlhf-tir`.
        directory: What it writes.
        resumes: True if it goes on from a checkpoint with --resume.
        of: Directories of models that it reads.
        out: A file that it writes beside its directory.
        settings: Digest of its resolved settings, and the seed, if runs of the same settings are one run; else "".
    """

    words: list[str]
    directory: Path
    resumes: bool = False
    of: tuple[Path, ...] = ()
    out: Path | None = None
    settings: str = ""

    @property
    def log(self) -> Path:
        """The file of what it prints."""
        return self._beside("log")

    @property
    def mark(self) -> Path:
        """The file of its Mark."""
        return self._beside("json")

    @property
    def weights(self) -> list[list[Any]]:
        """What tells the models that it reads from those that were in their place before."""
        return [weights_of(str(directory)) for directory in self.of]

    @property
    def made(self) -> bool:
        """Whether what it writes is there."""
        return self.directory.exists() and (self.out is None or self.out.exists())

    def _beside(self, suffix: str) -> Path:
        return self.directory.with_name(f"{self.directory.name}.{self.words[0]}.{suffix}")


class Mark(NamedTuple):
    """What is kept of a command.

    Attributes:
        words: Its words.
        seconds: Seconds that it took so far.
        finished: True if it ended well.
        weights: What told the models that it read from others.
        settings: Its settings; "" in a mark of an earlier version.
    """

    words: list[str]
    seconds: float = 0.0
    finished: bool = False
    weights: list[list[Any]] | None = None
    settings: str = ""


Execute = Callable[[list[str], Path, float, Callable[[], None]], int]
"""(arguments, log, deadline in seconds, what to call now and then) -> exit code. Raises subprocess.TimeoutExpired; what
interrupts it stops the process."""


class How(NamedTuple):
    """How commands are run.

    Attributes:
        timeout_s: Seconds that each may take.
        say: Called with each line for a person.
        execute: Runs a process; a test gives a stand-in.
        lock: Given a directory of the lock's own, returns a context that waits while another process holds the lock.
            It guards what other comparisons make as well.
        check: Given a command's words, raises ConfigError if it cannot work. Called for all before any of them starts.
    """

    timeout_s: float
    say: Callable[[str], None]
    execute: Execute | None = None
    lock: Callable[[Path], AbstractContextManager[None]] = lambda directory: nullcontext()
    check: Callable[[list[str]], None] = lambda words: None


def mark_of(command: Command) -> Mark | None:
    """Return the command's mark; None if it was never started, or a crash of the machine has torn the mark."""
    return _read(command.mark)


def is_finished(command: Command) -> bool:
    """Return True if the command need not be run again."""
    mark = mark_of(command)
    return mark is not None and mark.finished and _same(mark, command) and command.made


def _same(mark: Mark, command: Command) -> bool:
    settings = mark.settings or command.settings
    return (mark.words, mark.weights, settings) == (command.words, command.weights, command.settings)


def share(command: Command, root: Path) -> Mark | None:
    """Link the command's directory to a finished run of the same settings, seed and weights, and return its mark.

    A run of the command's own directory is not linked.

    Args:
        command: A command that is about to run. If it was begun before, it goes on with that instead.
        root: Directory of the comparisons, whose runs are ROOT/NAME/seed-S/ARM.

    Returns:
        None if there is no such run, or the command's settings are not known.
    """
    if command.directory.is_symlink():  # What it leads to may be another run by now.
        command.directory.unlink()
    own = mark_of(command)
    if not command.settings or (own and _same(own, command) and command.directory.exists()):
        return None
    suffix = f".{command.words[0]}.json"
    for path in (command.mark, *sorted(root.glob(f"*/seed-*/*{suffix}"))):
        mark = _read(path)
        directory = path.with_name(path.name.removesuffix(suffix))
        if (
            mark is not None
            and mark.finished
            and (mark.settings, mark.weights) == (command.settings, command.weights)
            and directory.is_dir()
        ):
            if path == command.mark:  # Only its words are others: the comparison was moved, or a later version asks.
                return mark
            shutil.rmtree(command.directory, ignore_errors=True)
            command.mark.unlink(missing_ok=True)
            command.directory.parent.mkdir(parents=True, exist_ok=True)
            command.directory.symlink_to(directory.resolve())
            return mark
    return None


def run(
    command: Command, *, timeout_s: float, tick: Callable[[], None] = lambda: None, execute: Execute | None = None
) -> float:
    """Run a command that is not finished, and return its seconds, those of earlier tries included.

    Raises:
        ReproductionFailed: It failed or missed its deadline. The error says which log to read.
    """
    mark = mark_of(command)
    if mark and is_finished(command):
        return mark.seconds
    if mark is None or mark.finished or not _same(mark, command) or not command.directory.exists():
        shutil.rmtree(command.directory, ignore_errors=True)
        mark = Mark(command.words, weights=command.weights, settings=command.settings)
    words = list(command.words)
    if command.resumes and (command.directory / "ckpt" / "latest").exists():
        words.append("--resume")
    command.directory.mkdir(parents=True, exist_ok=True)
    _write(command.mark, mark)
    started = time.monotonic()
    command_line = f"openrlhf-tir {' '.join(words)}"
    try:
        code = (execute or _execute)([sys.executable, "-m", "openrlhf_tir.cli", *words], command.log, timeout_s, tick)
    except subprocess.TimeoutExpired:
        raise ReproductionFailed(
            f"{command_line}\nhas not ended after {timeout_s:g} s. Raise --arm-timeout; its log is {command.log}."
        ) from None
    finally:
        mark = mark._replace(seconds=mark.seconds + time.monotonic() - started)
        _write(command.mark, mark)
    if code:
        raise ReproductionFailed(
            f"{command_line}\nended with {code}: {last_line(command.log)}\nIts log is {command.log}."
            " The same command goes on from what is there."
        )
    _write(command.mark, mark._replace(finished=True))
    return mark.seconds


def last_line(log: Path) -> str:
    """Return the last line that a command has printed: its error, if it ended with one."""
    try:
        end = log.read_bytes()[-LAST_BYTES:].decode("utf-8", "replace").strip()
    except OSError:
        end = ""
    return end.splitlines()[-1].strip() if end else "(it said nothing)"


def _read(path: Path) -> Mark | None:
    try:
        return Mark(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _write(path: Path, mark: Mark) -> None:
    replace_text(path, json.dumps(mark._asdict(), indent=2) + "\n")


def _execute(
    arguments: list[str],
    log: Path,
    timeout_s: float,
    tick: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Run a process, as `Execute` says.

    It has a session of its own, so that a Ctrl-C at the terminal reaches it once, from here, and it ends in good order.
    """
    environment = {"OMP_NUM_THREADS": "1", **os.environ}  # more threads than cores is catastrophic for the small model
    deadline = clock() + timeout_s
    with log.open("ab") as out:
        process = subprocess.Popen(
            arguments,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
        try:
            while (left := deadline - clock()) > 0:
                try:
                    return process.wait(min(LOOK_S, left))
                except subprocess.TimeoutExpired:
                    tick()
            raise subprocess.TimeoutExpired(arguments, timeout_s)
        finally:
            end_process(process, STOP_S)
