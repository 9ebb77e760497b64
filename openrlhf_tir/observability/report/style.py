"""The look of every plot, and the one way to make a figure. Dark pages invert plots by a rule in templates/style.css.

matplotlib is used without pyplot, so figures leave no global state behind.
"""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator
from PIL import Image

WIDTH_IN = 9.0
"""Width of a figure in inches."""
NARROW_IN = 4.4
"""Width of a figure for a phone, in inches. Its panels stand below each other, and its text is as large as the page's.
"""
DPI = 160
NARROW_TITLE = 42
"""Characters of a title that fit on one line of a narrow figure."""
LEGEND_LINE = 15.0
"""Height of a legend's line in points."""
_narrow: ContextVar[bool] = ContextVar("narrow", default=False)
TITLE_OVER_LEGEND = 24.0
"""Points between a panel and its title if the legend lies between them."""
SURFACE = "#ffffff"
INK = "#14171c"
MUTED = "#5b6270"
GRID = "#e4e7ec"
COLORS = ("#2a6fdb", "#e8743b", "#169b72", "#c79100", "#7a4fd0", "#d1478c", "#5b8a9a", "#9a6b4f")
"""Colours of lines and bars. Colour-blind readers can tell neighbours apart."""
SETTINGS = {
    "figure.facecolor": SURFACE,
    "axes.facecolor": SURFACE,
    "savefig.facecolor": SURFACE,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.titlecolor": INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "ytick.major.size": 0,
    "font.size": 9,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 1.2,
    "legend.labelcolor": MUTED,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
}
"""matplotlib's settings for the plots."""


@contextmanager
def plot_style() -> Iterator[None]:
    """Give figures that are made inside the block the common look."""
    with matplotlib.rc_context(SETTINGS):
        yield


@contextmanager
def narrowed(narrow: bool) -> Iterator[None]:
    """Give figures that are made inside the block the width of a phone."""
    token = _narrow.set(narrow)
    try:
        yield
    finally:
        _narrow.reset(token)


def fitted(title: str) -> str:
    """Return a title, broken into lines if figures are narrow."""
    return "\n".join(textwrap.wrap(title, NARROW_TITLE)) if _narrow.get() else title


def is_narrow() -> bool:
    """Return True if figures that are made now have the width of a phone."""
    return _narrow.get()


def new_figure(
    height_in: float, columns: int = 1, rows: int = 1, panels: int | None = None, **subplots
) -> tuple[Figure, list[Axes]]:
    """Return a figure of the common width and its axes, row by row.

    Args:
        height_in: Height in inches.
        columns: Columns of panels.
        rows: Rows of panels.
        panels: Number of panels that are used, if not all. A narrow figure has only these.
        **subplots: Further arguments of matplotlib's `Figure.subplots`.
    """
    width_in = WIDTH_IN
    if _narrow.get():
        subplots.pop("width_ratios", None)
        height_in = max(height_in, 2.9) if rows == columns == 1 else 2.6 * (panels or rows * columns)
        rows, columns, width_in = panels or rows * columns, 1, NARROW_IN
    figure = Figure(figsize=(width_in, height_in), dpi=DPI, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **subplots)
    return figure, list(axes.flat)


def ticks_at_steps(axes: Axes) -> None:
    """Put ticks at whole steps only."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, steps=[1, 2, 5, 10]))


def legend_above(axes: Axes, *, own_line: bool = False, **options) -> None:
    """Add a legend that never covers data: at the right of the title's line, or below the title where it does not fit.

    Args:
        axes: The panel.
        own_line: Put the legend on a line of its own below the title, for long titles and names.
        **options: Further arguments of matplotlib's `Axes.legend`.
    """
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1 and _narrow.get():
        per_line = 2 if max(map(len, labels)) > 12 or len(labels) == 2 else 3
        lines = -(-len(labels) // per_line)
        axes.set_title(axes.get_title("left"), pad=8 + LEGEND_LINE * lines)
        axes.legend(
            handles,
            labels,
            loc="lower left",
            bbox_to_anchor=(-0.02, 1.0),
            ncols=per_line,
            borderaxespad=0.3,
            columnspacing=1.0,
            labelspacing=0.25,
            **options,
        )
    elif len(labels) > 1:
        if own_line:
            axes.set_title(axes.get_title("left"), pad=TITLE_OVER_LEGEND)
        axes.legend(
            handles,
            labels,
            loc="lower left" if own_line else "lower right",
            bbox_to_anchor=(-0.02 if own_line else 1.005, 1.0),
            ncols=len(labels),
            borderaxespad=0.3 if own_line else 0.55,
            columnspacing=1.4,
            **options,
        )


def png(figure: Figure) -> bytes:
    """Return the figure as a PNG file. It is drawn once, where matplotlib's `savefig` draws twice."""
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg), "made by new_figure"
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    image.save(buffer := io.BytesIO(), "PNG", compress_level=5, dpi=(DPI, DPI))
    return buffer.getvalue()


def data_uri(image: bytes) -> str:
    """Return a PNG file as a URI that holds it."""
    return "data:image/png;base64," + base64.b64encode(image).decode()
