"""The timeline: lanes over wall-clock time on which the reader sees rollout and training overlap.

An engine's lane is an area: how many requests it decodes at each moment. The other lanes are boxes. In the zoom, pale
bands mark the learner steps across all lanes: where an engine's area is above zero inside a band, rollout and training
ran at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...telemetry.timeline import Span, overlap_ratio
from .style import COLORS, INK, MUTED, SURFACE, new_figure

MAX_ENGINE_LANES = 8
"""More engines than this share one lane."""
BINS = 1400
"""Resolution of an engine's area: about one bin per pixel."""
WINDOW_STEPS = 3
"""Learner steps of the close-up."""


def timeline(spans: Sequence[Span], window: tuple[float, float] | None = None) -> Figure | None:
    """Draw all tracks.

    Args:
        spans: The traced spans.
        window: Start and end in seconds since the epoch; None for the whole run.

    Returns:
        The figure, or None if nothing was traced.
    """
    if not spans:
        return None
    origin = min(span.start for span in spans)
    start, end = window or (origin, max(span.end for span in spans))
    unit, seconds = ("minutes", 60.0) if end - start > 600 else ("seconds", 1.0)
    zoomed = window is not None
    if zoomed:
        title = "Three steps from the middle"
    else:
        title = (
            f"Rollout and training over time: engines decoded during {overlap_ratio(spans):.0%} of learner-step time"
        )
    inside = [
        replace(span, start=(span.start - origin) / seconds, end=(span.end - origin) / seconds)
        for span in spans
        if span.end >= start and span.start <= end
    ]
    left = (start - origin) / seconds
    right = (end - origin) / seconds

    lanes = _lanes(inside)
    figure, (axes,) = new_figure(1.1 + 0.5 * len(lanes))
    for y, (name, lane_spans) in enumerate(reversed(lanes.items())):
        if name.startswith("engine"):
            _area(axes, y, lane_spans, left, right)
        else:
            _boxes(axes, y, lane_spans, COLORS[_COLOR_INDEX.get(name, 6)], named=zoomed and name == "learner")
    for span in lanes.get("learner", ()) if zoomed else ():
        axes.axvspan(span.start, span.end, color=COLORS[_COLOR_INDEX["learner"]], alpha=0.10, lw=0, zorder=0)
    axes.set(
        xlim=(left, right), ylim=(-0.55, len(lanes) - 0.4), xlabel=f"{unit} since the start of the trace", title=title
    )
    axes.set_yticks(range(len(lanes)), list(reversed(lanes)))
    axes.tick_params(axis="y", labelsize=9.5, labelcolor=INK)
    axes.grid(False)
    return figure


def middle(spans: Sequence[Span]) -> tuple[float, float] | None:
    """Return the (start, end) of a window around WINDOW_STEPS learner steps in the middle of the run.

    Returns None if the run has no more steps than that, because a zoom would then show nothing new.
    """
    learner = sorted((s for s in spans if s.track == "learner" and s.name.startswith("step")), key=lambda s: s.start)
    if len(learner) <= WINDOW_STEPS:
        return None
    first = (len(learner) - WINDOW_STEPS) // 2
    start, end = learner[first].start, learner[first + WINDOW_STEPS - 1].end
    return start - 0.08 * (end - start), end + 0.08 * (end - start)


def decoding(spans: Sequence[Span], start: float, end: float, bins: int = BINS) -> np.ndarray:
    """Return the mean number of spans that run at once in each of `bins` equal slices of start..end.

    The integral of that number up to t is sum(max(0, t - start_i)) - sum(max(0, t - end_i)); the mean of a slice is the
    difference of the integral at its edges, divided by its length.

    Args:
        spans: The spans.
        start: Start of the first slice.
        end: End of the last slice.
        bins: Number of slices.

    Returns:
        [bins] float64.
    """
    edges_E = np.linspace(start, end, bins + 1)
    integral_E = _passed(np.array([s.start for s in spans]), edges_E) - _passed(
        np.array([s.end for s in spans]), edges_E
    )
    return np.diff(integral_E) / np.diff(edges_E)


def _passed(times: np.ndarray, edges_E: np.ndarray) -> np.ndarray:
    """[E] sum over `times` of max(0, at - time)."""
    times = np.sort(times)
    count_E = np.searchsorted(times, edges_E)
    return count_E * edges_E - np.concatenate([[0.0], np.cumsum(times)])[count_E]


_COLOR_INDEX = {"learner": 1, "weights": 4, "eval": 2, "ckpt": 3}
"""Index into `COLORS`; engines are 0, other tracks 6."""


def _lanes(spans: Sequence[Span]) -> dict[str, list[Span]]:
    """Return lane name -> spans, from top to bottom: engines, learner, weights, then the others by name."""
    tracks: dict[str, list[Span]] = {}
    for span in spans:
        tracks.setdefault(span.track, []).append(span)
    engines = sorted((track for track in tracks if track.startswith("engine/")), key=lambda track: (len(track), track))
    lanes = {track.replace("/", " "): tracks[track] for track in engines}
    if len(engines) > MAX_ENGINE_LANES:
        lanes = {f"engines ({len(engines)})": [s for track in engines for s in tracks[track]]}
    first = [track for track in ("learner", "weights") if track in tracks]
    return lanes | {track: tracks[track] for track in first + sorted(tracks.keys() - {*engines, *first})}


def _area(axes: Axes, y: int, spans: Sequence[Span], left: float, right: float) -> None:
    engines = decoding([s for s in spans if s.name.startswith("decode")], left, right)
    peak = engines.max()
    if peak < 1e-6:
        return
    axes.stairs(
        y - 0.36 + 0.74 * engines / peak,
        np.linspace(left, right, len(engines) + 1),
        baseline=y - 0.36,
        fill=True,
        color=COLORS[0],
        lw=0,
    )
    if round(peak) > 1:  # a lane of several engines
        axes.annotate(
            f"peak {peak:.0f}", (1.006, y), xycoords=("axes fraction", "data"), fontsize=8, color=MUTED, va="center"
        )


def _boxes(axes: Axes, y: int, spans: Sequence[Span], color: str, named: bool) -> None:
    # The edge keeps a box visible that is narrower than a pixel.
    axes.broken_barh(
        [(span.start, span.end - span.start) for span in spans],
        (y - 0.3, 0.6),
        facecolor=color,
        edgecolor=SURFACE if named else color,
        lw=0.6,
    )
    for span in spans if named else ():
        axes.text(
            (span.start + span.end) / 2,
            y,
            span.name,
            ha="center",
            va="center",
            fontsize=8.5,
            color=SURFACE,
            clip_on=True,
        )
