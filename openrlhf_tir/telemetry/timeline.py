"""The trace of a run: spans of wall-clock time on named tracks, in trace.jsonl.

It feeds Perfetto, the plot of the timeline and the overlap ratio. A track does one kind of work: "learner" (spans
"step 7"), "engine/0" (a span "decode" while the engine decodes anything), "weights" (pushes), "ckpt", "eval",
"env/NAME" (spans "start" and "evaluate" of its sessions, where they take time). Times are seconds since the epoch, so
that spans of several processes can be compared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .intervals import Interval, intersection, lanes, length, union
from .jsonl import PatientWriter, read_rows

FILE = "trace.jsonl"
"""Name of the file in the run directory."""


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work on a track, from `start` to `end` in seconds since the epoch."""

    track: str
    name: str
    start: float
    end: float
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def interval(self) -> Interval:
        """Start and end."""
        return self.start, self.end


class Timeline:
    """Appends spans to a file; threads and tasks may share it, as they may share its writer.

    A span is written when it ends, also if its body raises. A disk that refuses is logged once and never ends the run.
    """

    def __init__(self, path: Path):
        self._writer = PatientWriter(path)

    @contextmanager
    def span(self, track: str, name: str, **args: Any) -> Iterator[None]:
        """Record the body as a span. If it raises, the span has the name of the error."""
        start = time.time()
        try:
            yield
        except BaseException as error:
            args["error"] = type(error).__name__
            raise
        finally:
            self.add(track, name, start, time.time(), **args)

    def add(self, track: str, name: str, start: float, end: float, **args: Any) -> None:
        """Record a span that was measured elsewhere. If `end` is before `start` (a clock was set), it has no length."""
        self._writer.write(asdict(Span(track, name, start, max(start, end), args)))

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def read(run_dir: Path) -> list[Span]:
    """Return the spans of a run in order of their start; [] without a trace."""
    return sorted(
        (Span(**row) for row in read_rows(Path(run_dir) / FILE, _is_span)), key=lambda span: (span.start, span.end)
    )


def _is_span(row: dict[str, Any]) -> bool:
    times = row.get("start"), row.get("end")
    texts = row.get("track"), row.get("name")
    known = row.keys() <= {"track", "name", "start", "end", "args"}
    return (
        known
        and all(type(value) in (int, float) for value in times)
        and all(isinstance(value, str) for value in texts)
        and isinstance(row.get("args", {}), dict)
    )


def overlap_ratio(spans: Iterable[Span]) -> float:
    """Return the share (0..1) of learner-step time during which at least one engine request was decoding; 0.0 without a
    step.

    |union(steps) & union(decodes)| / |union(steps)|. Spans "step ..." and "accumulate ..." of the learner are steps,
    spans "decode..." of engines are decodes. Canary requests and pauses have other names, so they do not count.
    """
    spans = list(spans)
    steps = union(
        span.interval for span in spans if span.track == "learner" and span.name.startswith(("step", "accumulate"))
    )
    busy = union(span.interval for span in spans if span.track.startswith("engine/") and span.name.startswith("decode"))
    return length(intersection(steps, busy)) / length(steps) if length(steps) > 0 else 0.0


def to_perfetto(run_dir: Path) -> Path:
    """Write trace.json in the Chrome trace format, which ui.perfetto.dev opens, and return its path.

    A track becomes a process. The format requires spans of one thread to nest, so overlapping requests get several
    threads.
    """
    spans = read(run_dir)
    origin = spans[0].start if spans else 0.0
    events: list[dict[str, Any]] = []
    for pid, track in enumerate(sorted({span.track for span in spans}), 1):
        track_spans = [span for span in spans if span.track == track]
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": track}})
        for span, tid in zip(track_spans, lanes([span.interval for span in track_spans]), strict=True):
            start_us = (span.start - origin) * 1e6
            duration_us = (span.end - span.start) * 1e6
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
