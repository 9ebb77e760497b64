"""A line about what a run is doing, at least every 30 seconds, and the same facts in RUN/status.json.

    with beating(console, run_dir):              the thread that prints; without it a run prints no such line
        with doing("starting engines"):          the current stage; stages nest, the innermost is named
            ...
        show(Status(...))                        the figures of a training run, from its event loop

The thread prints when nothing else was printed for `EVERY_S`, also while a long computation blocks the event loop. A
process has one console, so it has one heartbeat: module state, as in the logging module.

The main thread writes the facts and the heartbeat's thread reads them. Every fact is replaced as a whole, so no lock is
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
from ..machine.files import replace_text

FILE = "status.json"
"""Name of the status file in the run directory."""
EVERY_S = 20.0
"""Seconds of silence after which a line is printed. It is below 30 s so that a busy machine keeps the promise too."""
TICK_S = 1.0
"""Seconds between two wake-ups of the thread."""
STALE_S = 60.0
"""A status that is older has no living writer: it is written every few seconds."""
WRITE_EVERY_S = 3.0
"""Seconds between two writes of status.json."""


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
        eta_s: Seconds until the last update, from the wall clock of whole cycles; None if they cannot be told, as
            before the first update.
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
    """Return the status as one line for a person."""
    parts = [f"step {status.step}/{status.max_steps}", status.waits_for]
    in_env = ", ".join(f"{calls} in env {env}" for env, calls in status.in_env.items() if calls)
    parts.append(f"rolling {status.rolling}" + (f" (calls: {in_env})" if in_env else ""))
    parts.append(f"rolled {status.rolled}, accepted {status.accepted}")
    if status.dropped:
        parts.append(f"dropped {counts(status.dropped)}")
    if status.failed:
        parts.append(f"failed {counts(status.failed)}")
    if status.tokens_per_s is not None:
        parts.append(f"{status.tokens_per_s:,.0f} sampled tok/s")
    if status.first_step_s is not None:
        parts.append(f"first step in about {clock_text(status.first_step_s)}")
    elif status.step == 0 and not status.accepted and status.needed:
        parts.append(f"first step: when {status.needed} groups are accepted")
    if status.eta_s is not None:
        parts.append(f"eta {clock_text(status.eta_s)}")
    return "  ".join(part for part in parts if part)


def counts(by_reason: Mapping[str, int]) -> str:
    """Return the total and the count of each reason, the most frequent first: `28 (accuracy_low 25, too_long 3)`."""
    ordered = sorted(by_reason.items(), key=lambda item: -item[1])
    return f"{sum(by_reason.values())} (" + ", ".join(f"{reason} {count}" for reason, count in ordered) + ")"


def clock_text(seconds: float) -> str:
    """Return a duration as `1:05` or `2:01:05`."""
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds_left:02}" if hours else f"{minutes}:{seconds_left:02}"


@dataclass(slots=True)
class _Stage:
    """A piece of work that is under way, since when (by the heartbeat's clock), and how far it is."""

    name: str
    since: float
    note: str = ""


class Heartbeat:
    """The state behind the functions of this module. Tests make their own, with their own clock.

    Attributes:
        clock: Returns seconds.
        started: Time of the start.
        status: Figures of the training run; None if none is running.
        in_place: Shows the line in a live display instead of printing it; None if lines are printed.
        notice: What a person should read now; empty when it is over.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.started = clock()
        self.status: Status | None = None
        self._last_status: Status | None = None
        """Stays when the run is over, for those who read status.json then."""
        self.in_place: Callable[[str], None] | None = None
        self.notice: tuple[str, ...] = ()
        self._stages: tuple[_Stage, ...] = ()
        self._last_line_at = clock()

    def line_printed(self) -> None:
        """Record that another part of the program has just printed a line."""
        self._last_line_at = self.clock()

    def show(self, status: Status | None) -> None:
        """Replace the figures of the training run; None if none is running."""
        self.status = status
        self._last_status = status or self._last_status

    @contextmanager
    def doing(self, name: str) -> Iterator[Callable[[str], None]]:
        """Name a stage while the body runs. Yields a function that records how far it is."""
        stage = _Stage(name, self.clock())
        self._stages = (*self._stages, stage)

        def note(text: str) -> None:
            stage.note = text

        try:
            yield note
        finally:
            self._stages = tuple(other for other in self._stages if other is not stage)

    @property
    def line(self) -> str:
        """The line to print now; "" if nothing is under way."""
        since_start = f"+{clock_text(self.clock() - self.started)}"
        stages = self._stages
        if stages:
            stage = stages[-1]
            took = clock_text(self.clock() - stage.since)
            return "  ".join(part for part in (since_start, f"{stage.name} (for {took})", stage.note) if part)
        status = self.status
        return f"{since_start}  {status_line(status)}" if status else ""

    def due(self) -> str:
        """Return the line if one must be printed now, else ""."""
        if self.clock() - self._last_line_at < EVERY_S:
            return ""
        line = self.line
        if line:
            self._last_line_at = self.clock()
        return line

    def facts(self) -> dict[str, Any]:
        """Return the content of status.json."""
        stages = self._stages
        stage = stages[-1] if stages else None
        status = self._last_status
        return {
            "time": time.time(),
            "pid": os.getpid(),
            "since_start_s": round(self.clock() - self.started, 1),
            "stage": stage.name if stage else "",
            "stage_note": stage.note if stage else "",
            "notice": list(self.notice),
            "status": asdict(status) if status else None,
        }


_heartbeat = Heartbeat()


def doing(name: str) -> Any:
    """See Heartbeat.doing."""
    return _heartbeat.doing(name)


def show(status: Status | None) -> None:
    """See Heartbeat.show."""
    _heartbeat.show(status)


def notice(lines: Sequence[str]) -> None:
    """Keep the lines in status.json for the live page. No lines: the last notice is over."""
    _heartbeat.notice = tuple(lines)


def line_printed() -> None:
    """See Heartbeat.line_printed."""
    _heartbeat.line_printed()


@contextmanager
def in_place(shown: Callable[[str], None]) -> Iterator[None]:
    """Give the line to `shown` every second while the body runs, instead of printing it: a live display shows it."""
    previous = _heartbeat.in_place
    _heartbeat.in_place = shown
    try:
        yield
    finally:
        _heartbeat.in_place = previous


@contextmanager
def beating(console: Console, run_dir: Path) -> Iterator[None]:
    """Print lines and write RUN/status.json while the body runs. Does nothing if a heartbeat is already running."""
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
    """Print or show the line. A console that is gone (a closed pipe) must not end the thread: status.json is still
    read."""
    with suppress(OSError, ValueError):
        shown = beat.in_place
        if shown is not None:
            shown(beat.line)
        elif line := beat.due():
            console.print(line, soft_wrap=True, markup=False, highlight=False)


def _write(run_dir: Path, facts: Mapping[str, Any]) -> None:
    """Replace the file. A disk that refuses is ignored: the console has the facts."""
    with suppress(OSError):
        run_dir.mkdir(parents=True, exist_ok=True)
        replace_text(run_dir / FILE, json.dumps(facts))


def read(run_dir: Path) -> dict[str, Any] | None:
    """Return the content of RUN/status.json; None if there is none that can be read."""
    try:
        facts = json.loads((run_dir / FILE).read_text())
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) and isinstance(facts.get("time"), int | float) else None
