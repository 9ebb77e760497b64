"""Page: the results of a miniature -> index.html with the claim, the verdict, the curves of the arms and the table with
seeds; and curves.png.

One colour an arm, one line a seed. The words and the order of the sections are in
observability/report/templates/reproduce.html.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from openrlhf_tir.observability.report import html
from openrlhf_tir.observability.report.style import (
    COLORS,
    data_uri,
    legend_above,
    new_figure,
    plot_style,
    png,
    ticks_at_steps,
)

from .arms import Read
from .miniature import Check, Miniature

PAGE, PICTURE = "index.html", "curves.png"
COUNTS = ("eval/calls", "calls by N", "rolled per trained")
"""Curves that are no shares."""


class Result(Protocol):
    """What came of one seed."""

    @property
    def seed(self) -> int: ...
    @property
    def arms(self) -> dict[str, Read]: ...
    @property
    def checks(self) -> list[Check]: ...
    @property
    def seen(self) -> bool: ...
    @property
    def seconds(self) -> float: ...


def write_page(miniature: Miniature, results: Sequence[Result], out: Path) -> Path:
    """Write page and picture to the directory `out`. Return the path of the page."""
    with plot_style():
        picture = png(curves(miniature, results))
    (out / PICTURE).write_bytes(picture)
    seen = sum(r.seen for r in results)
    page = html.render(
        "reproduce.html",
        title=miniature.title,
        miniature=miniature,
        verdict=f"effect seen on {seen} of {len(results)} seeds" if seen else "not seen",
        seen=seen == len(results),
        picture=data_uri(picture),
        head=("seed", "arm", *miniature.columns),
        rows=table(miniature, results),
        checks=[(r.seed, "yes" if check.ok else "no", check.said) for r in results for check in r.checks],
        seconds=f"{sum(r.seconds for r in results) / len(results):.0f}",
    )
    path = out / PAGE
    path.write_text(page, encoding="utf-8")
    return path


def table(miniature: Miniature, results: Sequence[Result]) -> list[list[str]]:
    """Return the rows of the table, one for each arm and seed, with "-" where an arm has no such figure."""
    found = []
    for r in results:
        for name, read in r.arms.items():
            values = (read.figures.get(column) for column in miniature.columns)
            found.append([str(r.seed), name, *("-" if value is None else f"{value:.3f}" for value in values)])
    return found


def curves(miniature: Miniature, results: Sequence[Result]) -> Figure:
    """Return the picture, with two panels in a row.

    The points of a panel by N are at equal distances: 0, 2, 4, 20 are no scale.
    """
    rows = -(-len(miniature.panels) // 2)
    figure, axes = new_figure(3.0 * rows, columns=2, rows=rows)
    for ax, panel in zip(axes, miniature.panels, strict=False):
        ax.set(title=panel.title, xlabel=panel.x)
        places = (
            sorted({x for r in results for read in r.arms.values() for x, _ in read.curves.get(panel.curve, ())})
            if panel.x.startswith("N")
            else None
        )
        for color, name in zip(COLORS, miniature.arms, strict=False):
            lines = [points for r in results if (points := r.arms[name].curves.get(panel.curve))]
            for i, points in enumerate(lines):
                x = [places.index(p) if places else p for p, _ in points]
                ax.plot(
                    x,
                    [y for _, y in points],
                    color=color,
                    lw=1.8,
                    marker=".",
                    alpha=1.0 if len(lines) == 1 else 0.7,
                    label=name if i == 0 else None,
                )
        if places:
            ax.set_xticks(range(len(places)), [f"{p:g}" for p in places])
        else:
            ticks_at_steps(ax)
        if panel.curve in COUNTS:
            ax.set_ylim(bottom=0)
        else:
            ax.set_ylim(0, 1.02)
            ax.yaxis.set_major_formatter(PercentFormatter(1.0, 0))
        legend_above(ax, own_line=True)
    for ax in axes[len(miniature.panels) :]:
        ax.set_axis_off()
    return figure
