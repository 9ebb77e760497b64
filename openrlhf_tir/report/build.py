"""Report: a run directory -> plots/*.png and report.html, from whatever the run has written so far.

Reads metrics.jsonl, trace.jsonl, summary.json and config.toml (each may be missing, then its part is left out with a
remark); also writes trace.json for ui.perfetto.dev, and samples.html where the run kept trajectories. Every figure is
drawn for light and for dark pages; plots/ holds the light ones.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from ..config.settings import load
from ..errors import ConfigError, DataError
from ..logs import metrics
from ..logs import timeline as timelines
from ..logs.lost import lost_processes
from . import samples_page, summary
from .bias import BIAS_CURVES
from .curves import CURVES, Columns
from .environments import ENV_CURVES, names_of
from .held_out import HELD_OUT_CURVES, ks_of
from .page import Picture, Run, render
from .style import DARK, LIGHT, Theme, png, themed
from .timeline import middle, timeline


class Plot(NamedTuple):
    """A figure of the report, not drawn yet; `draw` returns None where the run has no data for it."""

    file: str
    title: str
    caption: str
    draw: Callable[[Theme], Figure | None]


def build_report(run_dir: Path) -> Path:
    """Write report.html and plots/*.png of a run, finished or not; returns the path of report.html.

    Raises DataError when the directory does not exist, holds nothing of a run, or holds a damaged file.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise DataError(
            f"{run_dir} is no directory. Give the run directory of a training run (the value of --run_dir)."
        )
    columns, spans, ends = metrics.read(run_dir), timelines.read(run_dir), summary.read(run_dir)
    if not columns and ends is None:
        raise DataError(
            f"{run_dir} holds no metrics: {metrics.FILE} and {summary.FILE} are missing or empty."
            " Give the directory of a run that finished a step."
        )

    remarks = [] if ends else [f"{summary.FILE} is missing: the run has not ended, or was ended from outside."]
    remarks += [f"Lost process: {line}." for line in lost_processes(run_dir)]
    pictures = []
    for plot in plots_of(columns, spans):
        picture = _draw(plot, run_dir / "plots")
        if picture:
            pictures.append(picture)
        else:
            remarks.append(f"“{plot.title}” is left out: the run has no data for it.")
    try:
        config = config_of(run_dir)
    except ConfigError as e:
        config = {}
        remarks.append(f"config.toml cannot be read, so the configuration is not shown: {e}")
    if config is None:
        remarks.append("config.toml is missing: the configuration is not shown.")
    if spans:
        timelines.to_perfetto(run_dir)

    samples = samples_page.write(run_dir)
    page = render(
        Run(
            run_dir.name,
            time.strftime("%Y-%m-%d %H:%M"),
            ends,
            columns,
            config or {},
            pictures,
            remarks,
            bool(spans),
            samples.name if samples else "",
        )
    )
    path = run_dir / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _on(columns: Columns, draw: Callable[[Columns, Theme], Figure | None]) -> Callable[[Theme], Figure | None]:
    return lambda theme: draw(columns, theme) if columns else None


def plots_of(columns: Columns, spans: list[timelines.Span]) -> list[Plot]:
    """The figures in the order of the page: what was learned, then the overlap, then the rest."""
    of_some = (HELD_OUT_CURVES if ks_of(columns) else ()) + (ENV_CURVES if names_of(columns) else ())
    curves = [Plot(c.file, c.title, c.caption, _on(columns, c.draw)) for c in (*CURVES, *of_some, *BIAS_CURVES)]
    window = middle(spans)
    whole = "Blue: requests being decoded. The learner trains on earlier groups while the engines sample the next ones."
    close = "Shaded: a learner step. Blue inside the shade is rollout and training at the same time."
    overlap = [
        Plot("timeline", "Timeline", whole, lambda theme: timeline(spans, theme)),
        Plot(
            "timeline_zoom",
            "Timeline, close up",
            close,
            lambda theme: timeline(spans, theme, window) if window else None,
        ),
    ]
    return curves[:1] + overlap + curves[1:]


def _draw(plot: Plot, directory: Path) -> Picture | None:
    """Both themes of one figure; the light one is also saved. An earlier report's plot without data is removed."""
    path = directory / f"{plot.file}.png"
    path.unlink(missing_ok=True)
    encoded: list[str] = []
    for theme in (LIGHT, DARK):
        with themed(theme):
            figure = plot.draw(theme)
            if figure is None:
                return None
            image = png(figure)
        if theme is LIGHT:
            directory.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image)
        encoded.append("data:image/png;base64," + base64.b64encode(image).decode())
    return Picture(plot.file, plot.title, plot.caption, *encoded)


def config_of(run_dir: Path) -> dict[str, Any] | None:
    path = run_dir / "config.toml"
    return load(str(path)).model_dump(mode="json") if path.exists() else None
