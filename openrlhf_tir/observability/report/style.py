"""The look of every plot, and the one way to make a figure. Dark pages invert plots by a rule in templates/style.css.

matplotlib is used without pyplot, so figures leave no global state behind.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager

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
DPI = 160
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


def new_figure(height_in: float, columns: int = 1, rows: int = 1, **subplots) -> tuple[Figure, list[Axes]]:
    """Return a figure of the common width and its axes, row by row.

    Args:
        height_in: Height in inches.
        columns: Columns of panels.
        rows: Rows of panels.
        **subplots: Further arguments of matplotlib's `Figure.subplots`.
    """
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **subplots)
    return figure, list(axes.flat)


def ticks_at_steps(axes: Axes) -> None:
    """Put ticks at whole steps only."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, steps=[1, 2, 5, 10]))


def legend_above(axes: Axes, *, own_line: bool = False) -> None:
    """Add a legend that covers no data: at the right of the title's line. One name alone needs none.

    Args:
        axes: The panel.
        own_line: Put the legend on a line of its own below the title, for long titles and names.
    """
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) < 2:
        return
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
