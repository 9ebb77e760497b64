"""Build the report of a run from what the run has written so far: report.html and plots/*.png.

Reads metrics.jsonl, trace.jsonl, summary.json and config.toml. Each may be missing: its part is then left out, and the
report says so. Also writes trace.json for ui.perfetto.dev, and samples.html if the run kept trajectories.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ...config.settings import load_former
from ...errors import ConfigError, DataError
from ...telemetry import metrics
from ...telemetry import timeline as timelines
from ...telemetry.lost import lost_processes
from . import samples_page, summary
from .bias import BIAS_CURVES
from .curves import CURVES, Columns, Plot
from .environments import ENV_CURVES, names_of
from .held_out import HELD_OUT_CURVES, ks_of
from .page import Picture, Run, render
from .style import data_uri, plot_style, png
from .timeline import middle, timeline


def build_report(run_dir: Path) -> Path:
    """Write report.html and plots/*.png of a run, which may still be running.

    Args:
        run_dir: The run directory.

    Returns:
        The path of report.html.

    Raises:
        DataError: The directory does not exist, holds nothing of a run, or holds a damaged file.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise DataError(f"There is no directory {run_dir}. Give the run directory of a training run (--run-dir).")
    columns = metrics.read(run_dir)
    spans = timelines.read(run_dir)
    result = summary.read(run_dir)
    if not columns and result is None:
        raise DataError(
            f"{run_dir} holds no metrics: {metrics.FILE} and {summary.FILE} are missing or empty."
            " Give the directory of a run that finished a step."
        )

    remarks = [] if result else [f"{summary.FILE} is missing: the run has not ended, or it was killed."]
    remarks += [f"Lost process: {line}." for line in lost_processes(run_dir)]
    pictures = []
    for plot in plots_of(columns, spans):
        picture = _draw(plot, columns, run_dir / "plots")
        if picture is None:
            remarks.append(f"“{plot.title}” is left out: the run has no data for it.")
        else:
            pictures.append(picture)
    try:
        config = config_of(run_dir)
    except ConfigError as error:
        config = {}
        remarks.append(f"config.toml cannot be read, so the configuration is not shown: {error}")
    if config is None:
        remarks.append("config.toml is missing: the configuration is not shown.")
    if spans:
        timelines.to_perfetto(run_dir)

    samples = samples_page.write(run_dir)
    page = render(
        Run(
            run_dir.name,
            time.strftime("%Y-%m-%d %H:%M"),
            result,
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


def plots_of(columns: Columns, spans: list[timelines.Span]) -> list[Plot]:
    """Return the figures in the order of the page: first what the model learned, then the overlap, then the rest."""
    held_out_curves = HELD_OUT_CURVES if ks_of(columns) else ()
    env_curves = ENV_CURVES if names_of(columns) else ()
    window = middle(spans)
    overlap = [
        Plot(
            "timeline",
            "Timeline",
            "Blue: requests being decoded. The learner trains on earlier groups while the engines sample the next.",
            lambda _: timeline(spans),
        ),
        Plot(
            "timeline_zoom",
            "Timeline, close up",
            "Shaded: a learner step. Blue inside the shade is rollout and training at the same time.",
            lambda _: timeline(spans, window) if window else None,
        ),
    ]
    return [*CURVES[:1], *overlap, *CURVES[1:], *held_out_curves, *env_curves, *BIAS_CURVES]


def drawn(plot: Plot, columns: Columns) -> bytes | None:
    """Return a figure as PNG; None if the run has no data for it."""
    with plot_style():
        figure = plot.draw(columns)
        return None if figure is None else png(figure)


def _draw(plot: Plot, columns: Columns, directory: Path) -> Picture | None:
    """Draw and save a figure. Without data, remove the plot of an earlier report."""
    path = directory / f"{plot.file}.png"
    path.unlink(missing_ok=True)
    image = drawn(plot, columns)
    if image is None:
        return None
    directory.mkdir(parents=True, exist_ok=True)
    path.write_bytes(image)
    return Picture(plot.file, plot.title, plot.caption, data_uri(image))


def config_of(run_dir: Path) -> dict[str, Any] | None:
    """Return the configuration of a run as JSON values; None if it has no config.toml.

    Raises:
        ConfigError: The file cannot be read.
    """
    path = run_dir / "config.toml"
    return load_former(path).model_dump(mode="json") if path.exists() else None
