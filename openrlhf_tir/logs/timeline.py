"""Timeline: spans of wall-clock time on named tracks -> trace.jsonl -> Perfetto, the timeline plot, the overlap ratio.

A track is something that does one kind of work: "learner" (spans "step 7"), "engine/0" (one span "decode" per request,
so they overlap), "weights" (pushes), "ckpt", "eval", "env/NAME" (spans "start" and "evaluate" of its sessions, where
they take time). Times are seconds since the epoch, so that spans of several processes line up.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .intervals import Interval, intersection, lanes, length, union
from .jsonl import PatientWriter, read_rows

FILE = "trace.jsonl"


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work on a track, from `start` to `end` (epoch seconds)."""

    track: str
    name: str
    start: float
    end: float
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def interval(self) -> Interval:
        return self.start, self.end


class Timeline:
    """Appends spans to a file; usable from threads and across awaits. A span is written when it ends, also when its
    body raises.

    A disk that refuses is said once and never ends the run.
    """

    def __init__(self, path: Path):
        self._writer = PatientWriter(path)
        self._lock = threading.Lock()

    @contextmanager
    def span(self, track: str, name: str, **args: Any) -> Iterator[None]:
        start = time.time()
        try:
            yield
        except BaseException as fault:
            args["error"] = type(fault).__name__
            raise
        finally:
            self.add(track, name, start, time.time(), **args)

    def add(self, track: str, name: str, start: float, end: float, **args: Any) -> None:
        """A span measured elsewhere, e.g. by a rollout actor. `end` before `start` (a clock set back) is no time."""
        with self._lock:
            self._writer.write(asdict(Span(track, name, start, max(start, end), args)))

    def close(self) -> None:
        self._writer.close()


def read(run_dir: Path) -> list[Span]:
    """The spans of a run in order of start; [] without a trace."""
    return sorted(
        (Span(**row) for row in read_rows(Path(run_dir) / FILE, _is_span)), key=lambda span: (span.start, span.end)
    )


def _is_span(row: dict[str, Any]) -> bool:
    times = row.get("start"), row.get("end")
    texts = row.get("track"), row.get("name")
    known = row.keys() <= {"track", "name", "start", "end", "args"}
    return (
        known
        and all(type(t) in (int, float) for t in times)
        and all(isinstance(t, str) for t in texts)
        and isinstance(row.get("args", {}), dict)
    )


def overlap_ratio(spans: Iterable[Span], busy_track_prefix: str = "engine/", step_track: str = "learner") -> float:
    """Share (0..1) of learner-step time during which at least one engine request was decoding; 0.0 without a step.

    |union(steps) & union(decodes)| / |union(steps)|. Steps are the spans "step ..." and "accumulate ..." of
    `step_track`; decodes are the spans "decode..." of the tracks that start with `busy_track_prefix`, so canary
    requests and pauses do not count.
    """
    spans = list(spans)
    steps = union(s.interval for s in spans if s.track == step_track and s.name.startswith(("step", "accumulate")))
    busy = union(s.interval for s in spans if s.track.startswith(busy_track_prefix) and s.name.startswith("decode"))
    return length(intersection(steps, busy)) / length(steps) if length(steps) > 0 else 0.0


def to_perfetto(run_dir: Path) -> Path:
    """Write trace.json in the Chrome trace format, which ui.perfetto.dev opens; returns its path.

    A track becomes a process. The format wants spans of one thread to nest, so overlapping requests have threads."""
    spans = read(run_dir)
    origin = spans[0].start if spans else 0.0
    events: list[dict[str, Any]] = []
    for pid, track in enumerate(sorted({s.track for s in spans}), 1):
        mine = [s for s in spans if s.track == track]
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": track}})
        for span, tid in zip(mine, lanes([s.interval for s in mine]), strict=True):
            start_us, duration_us = (span.start - origin) * 1e6, (span.end - span.start) * 1e6
            events.append(
                {
                    "ph": "X",
                    "name": span.name,
                    "cat": track,
                    "pid": pid,
                    "tid": tid + 1,
                    "ts": start_us,
                    "dur": duration_us,
                    "args": span.args,
                }
            )
    path = Path(run_dir) / "trace.json"
    path.write_text(
        json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"origin_epoch_s": origin}})
    )
    return path
