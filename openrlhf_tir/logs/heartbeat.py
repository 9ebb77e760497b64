"""Heartbeat: a line about what a run does, at least every 30 seconds, and the same facts in RUN/status.json.

    with beating(console, run_dir):              the thread that prints; a run without it prints nothing of its own
        with doing("starting engines"):          the stage that is named; stages nest, the innermost is named
            ...
        show(Status(...))                        the figures of a training run, from its event loop

The thread prints when nobody else has printed for `EVERY_S`, also while the event loop is blocked by a long
computation. A process has one console, so it has one heartbeat: module state, as the logging module has.

The main thread writes the facts, the heartbeat's thread reads them. Every fact is replaced as a whole, so no lock is
needed.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from ..errors import Stopped

FILE = "status.json"
EVERY_S = 20.0
"""Seconds of silence after which a line is printed. Below 30 s, so that a busy machine keeps the promise as well."""
TICK_S = 1.0
"""Seconds between two looks of the thread."""
STALE_S = 60.0
"""A status that is older than this has no living writer: it is written every few seconds."""
WRITE_EVERY_S = 3.0


@dataclass(frozen=True, slots=True)
class Status:
    """What a training run is doing between two updates. Every count is of this process, since it started or resumed.

    Attributes:
        waits_for: What the trainer waits for, a phrase that begins with "waiting for" or names its work.
        step: Updates that were made.
        max_steps: Updates after which the run ends.
        needed: Groups of a batch.
        ready: Accepted groups that the next batch has already.
        rolling: Groups in the engines.
        in_env: Environment -> calls that it is answering now.
        rolled: Groups that came to an end: accepted, dropped or failed.
        accepted: Groups that the filters kept.
        dropped: Reason -> groups.
        failed: Reason -> groups that infrastructure or user code ended.
        tokens_per_s: Tokens sampled per second by all engines; None until it is known.
        first_step_s: Seconds until the first update is expected to begin; None if it began or nothing is accepted yet.
        eta_s: Seconds until the last update, from the wall clock of whole cycles; None before the first update.
        cycle_s: Mean wall clock of an update, from one to the next; None before the second update.
    """

    waits_for: str = ""
    step: int = 0
    max_steps: int = 0
    needed: int = 0
    ready: int = 0
    rolling: int = 0
    in_env: Mapping[str, int] = field(default_factory=dict)
    rolled: int = 0
    accepted: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)
    tokens_per_s: float | None = None
    first_step_s: float | None = None
    eta_s: float | None = None
    cycle_s: float | None = None


def status_line(status: Status) -> str:
    """The status as one line for a person."""
    parts = [f"step {status.step}/{status.max_steps}", status.waits_for]
    in_env = ", ".join(f"{n} in env {env}" for env, n in status.in_env.items() if n)
    parts.append(f"rolling {status.rolling}" + (f" (calls: {in_env})" if in_env else ""))
    parts.append(f"rolled {status.rolled}, accepted {status.accepted}")
    if status.dropped:
        parts.append(f"dropped {counts(status.dropped)}")
    if status.failed:
        parts.append(f"failed {counts(status.failed)}")
    if status.tokens_per_s is not None:
        parts.append(f"{status.tokens_per_s:,.0f} tok/s")
    if status.first_step_s is not None:
        parts.append(f"first step in about {clock_text(status.first_step_s)}")
    elif status.step == 0 and not status.accepted and status.needed:
        parts.append(f"first step: when {status.needed} groups are accepted")
    if status.eta_s is not None:
        parts.append(f"eta {clock_text(status.eta_s)}")
    return "  ".join(part for part in parts if part)


def counts(by_reason: Mapping[str, int]) -> str:
    """`28 (accuracy_low 25, too_long 3)`: the total and each reason, the commonest first."""
    ordered = sorted(by_reason.items(), key=lambda item: -item[1])
    return f"{sum(by_reason.values())} (" + ", ".join(f"{reason} {n}" for reason, n in ordered) + ")"


def clock_text(seconds: float) -> str:
    """`1:05` or `2:01:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass(slots=True)
class _Stage:
    """A piece of work that is under way, and how far it is."""

    what: str
    since: float
    note: str = ""


class Heartbeat:
    """The state behind the module's functions. Tests make their own with a clock of theirs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.started = clock()
        self.status: Status | None = None
        self._last_status: Status | None = None
        """Stays when the run is over, for who reads status.json then."""
        self.in_place: Callable[[str], None] | None = None
        """Where a live display shows the line instead of printing it; None: lines are printed."""
        self.notice: tuple[str, ...] = ()
        """What a person should read now, until it is over."""
        self._stages: tuple[_Stage, ...] = ()
        self._spoke = clock()

    def spoke(self) -> None:
        """Another part of the program has just printed a line."""
        self._spoke = self.clock()

    def show(self, status: Status | None) -> None:
        """Replace the figures of the training run; None: none is running."""
        self.status = status
        self._last_status = status or self._last_status

    @contextmanager
    def doing(self, what: str) -> Iterator[Callable[[str], None]]:
        """Name a stage while the body runs. Yields a function that notes how far it is."""
        stage = _Stage(what, self.clock())
        self._stages = (*self._stages, stage)

        def note(text: str) -> None:
            stage.note = text

        try:
            yield note
        finally:
            self._stages = tuple(other for other in self._stages if other is not stage)

    @property
    def line(self) -> str:
        """What is to be said now; "" if nothing is under way."""
        since_start = f"+{clock_text(self.clock() - self.started)}"
        stages = self._stages
        if stages:
            stage = stages[-1]
            took = clock_text(self.clock() - stage.since)
            return "  ".join(part for part in (since_start, f"{stage.what} (for {took})", stage.note) if part)
        status = self.status
        return f"{since_start}  {status_line(status)}" if status else ""

    def due(self) -> str:
        """The line if one must be printed now, else ""."""
        if self.clock() - self._spoke < EVERY_S:
            return ""
        line = self.line
        if line:
            self._spoke = self.clock()
        return line

    def facts(self) -> dict[str, Any]:
        """The content of status.json."""
        stages = self._stages
        stage = stages[-1] if stages else None
        status = self._last_status
        return {
            "time": time.time(),
            "pid": os.getpid(),
            "since_start_s": round(self.clock() - self.started, 1),
            "stage": stage.what if stage else "",
            "stage_note": stage.note if stage else "",
            "notice": list(self.notice),
            "status": asdict(status) if status else None,
        }


_heartbeat = Heartbeat()


def doing(what: str) -> Any:
    """See Heartbeat.doing."""
    return _heartbeat.doing(what)


def show(status: Status | None) -> None:
    """See Heartbeat.show."""
    _heartbeat.show(status)


def notice(lines: Sequence[str]) -> None:
    """Keep the lines in status.json, for the live page; none: it is over."""
    _heartbeat.notice = tuple(lines)


def spoke() -> None:
    """See Heartbeat.spoke."""
    _heartbeat.spoke()


@contextmanager
def in_place(shown: Callable[[str], None]) -> Iterator[None]:
    """While the body runs the line is given to `shown` every second, and not printed: a live display has it."""
    before, _heartbeat.in_place = _heartbeat.in_place, shown
    try:
        yield
    finally:
        _heartbeat.in_place = before


@contextmanager
def beating(console: Console, run_dir: Path | None = None) -> Iterator[None]:
    """Print lines and write RUN/status.json while the body runs. Nothing happens where a heartbeat runs already."""
    global _heartbeat
    if any(thread.name == "heartbeat" for thread in threading.enumerate()):
        yield
        return
    _heartbeat = Heartbeat()
    beat = _heartbeat
    stop = threading.Event()
    ended = "finished"

    def run() -> None:
        written_at = 0.0
        while not stop.wait(TICK_S):
            _print(beat, console)
            if beat.clock() - written_at >= WRITE_EVERY_S:
                written_at = beat.clock()
                _write(run_dir, beat.facts())

    thread = threading.Thread(target=run, name="heartbeat", daemon=True)
    _write(run_dir, beat.facts())
    thread.start()
    try:
        yield
    except BaseException as error:
        ended = "stopped" if isinstance(error, Stopped | KeyboardInterrupt) else f"{type(error).__name__}: {error}"
        raise
    finally:
        stop.set()
        thread.join()
        _write(run_dir, beat.facts() | {"ended": ended})


def _print(beat: Heartbeat, console: Console) -> None:
    """A console that is gone (a closed pipe) must not end the thread: the status file is still read."""
    with suppress(OSError, ValueError):
        shown = beat.in_place
        if shown is not None:
            shown(beat.line)
        elif line := beat.due():
            console.print(line, soft_wrap=True, markup=False, highlight=False)


def _write(run_dir: Path | None, facts: Mapping[str, Any]) -> None:
    """Replace the file as a whole. A disk that refuses ends nothing: the console has the facts."""
    if run_dir is None:
        return
    with suppress(OSError):
        run_dir.mkdir(parents=True, exist_ok=True)
        temporary = run_dir / f".{FILE}.tmp"
        temporary.write_text(json.dumps(facts))
        os.replace(temporary, run_dir / FILE)


def read(run_dir: Path) -> dict[str, Any] | None:
    """The content of RUN/status.json; None where there is none that can be read."""
    try:
        facts = json.loads((run_dir / FILE).read_text())
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) and isinstance(facts.get("time"), int | float) else None
