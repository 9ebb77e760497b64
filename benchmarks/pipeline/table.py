"""Table: the figures of all runs -> one line per mode and R:T, as text or Markdown, medians over the repeats; and the
same as a picture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from .record import ModeFigures

Results = Mapping[tuple[float, str], Sequence[ModeFigures]]
"""(learner seconds over rollout seconds of a batch, mode) -> its repeats."""
HEAD = (
    "R:T", "mode", "step s", "x sync", "tokens/s", "discarded", "learner idle", "engine idle", "engine use", "age mean",
    "age max", "simulated",
)  # fmt: skip


class Line(NamedTuple):
    ratio: float
    name: str
    step_s: float
    figures: ModeFigures
    """Figures of the repeat with the median step."""
    speedup: float | None
    """How much faster than `sync` at the same R:T, by trained tokens per second; None where that was not run."""
    predicted_s: float | None


def ratio_name(ratio: float) -> str:
    """T / R as R:T: 0.25 -> 4:1."""
    return f"1:{ratio:g}" if ratio >= 1 else f"{1 / ratio:g}:1"


def median_of(runs: Sequence[ModeFigures]) -> ModeFigures:
    """The repeat whose trained tokens/s are the median (of an even number: the lower one)."""
    return sorted(runs, key=lambda f: f.trained_tokens_per_s)[(len(runs) - 1) // 2]


def lines(results: Results, predicted: Mapping[tuple[float, str], float]) -> list[Line]:
    out = []
    for (ratio, name), runs in results.items():
        f, base = median_of(runs), results.get((ratio, "sync"))
        speedup = f.trained_tokens_per_s / median_of(base).trained_tokens_per_s if base else None
        out.append(
            Line(ratio, name, statistics.median(r.step_s for r in runs), f, speedup, predicted.get((ratio, name)))
        )
    return out


def cells(line: Line) -> tuple[str, ...]:
    f = line.figures
    simulated = (
        ""
        if line.predicted_s is None
        else f"{line.predicted_s:.1f} s ({100 * (line.predicted_s / line.step_s - 1):+.0f} %)"
    )
    return (
        ratio_name(line.ratio),
        line.name,
        f"{line.step_s:.1f}",
        "" if line.speedup is None else f"{line.speedup:.2f}",
        f"{f.trained_tokens_per_s:,.0f}",
        f"{f.discarded_groups}",
        share(f.learner_idle),
        share(f.engine_idle),
        share(f.engine_use),
        f"{f.staleness_mean:.2f}",
        f"{f.staleness_max}",
        simulated,
    )


def markdown(rows: Sequence[Line]) -> str:
    table = [HEAD, ("---",) * len(HEAD), *map(cells, rows)]
    return "\n".join("| " + " | ".join(r) + " |" for r in table)


def text(rows: Sequence[Line]) -> str:
    table = [HEAD, *map(cells, rows)]
    widths = [max(len(r[i]) for r in table) for i in range(len(HEAD))]
    return "\n".join(
        "  ".join(c.ljust(n) if i < 2 else c.rjust(n) for i, (c, n) in enumerate(zip(r, widths, strict=True)))
        for r in table
    )


def share(x: float) -> str:
    """A percentage; nothing for one that is not known."""
    return "" if math.isnan(x) else f"{100 * x:.0f} %"


def plot(rows: Sequence[Line], bounds: Mapping[float, float], path: Path, what: str = "Emulated cluster") -> None:
    """Seconds of a step by R:T, one line per mode, the bound dashed; below, a step of the trainer with the fastest."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import ScalarFormatter

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 8), height_ratios=(3, 2), layout="constrained")
    ratios = sorted(bounds)
    names = list(dict.fromkeys(r.name for r in rows))
    for name, marker in zip(names, cycle("osxDv^*"), strict=False):
        mine = sorted((r for r in rows if r.name == name), key=lambda r: r.ratio)
        top.plot([r.ratio for r in mine], [r.step_s for r in mine], marker=marker, alpha=0.8, label=name)
    top.plot(ratios, [bounds[r] for r in ratios], "k--", lw=1, label="bound: max(saturated engines, learner)")
    top.set_xscale("log", base=2)
    top.set_yscale("log", base=2)
    top.yaxis.set_major_formatter(ScalarFormatter())
    top.set_xticks(ratios, [ratio_name(r) for r in ratios])
    top.set(
        xlabel="R:T (rollout of a batch : learner step)", ylabel="seconds per step", title=f"{what}: seconds per step"
    )
    top.grid(alpha=0.3)
    top.legend(fontsize="small")
    shown = [r for r in rows if r.ratio == min(ratios)]
    left = [0.0] * len(shown)
    for phase in shown[0].figures.split:
        widths = [max(0.0, r.figures.split[phase]) for r in shown]
        bottom.barh([r.name for r in shown], widths, left=left, label=phase.replace("_", " "))
        left = [a + b for a, b in zip(left, widths, strict=True)]
    bottom.invert_yaxis()
    bottom.set(xlabel=f"seconds of a step at R:T = {ratio_name(shown[0].ratio)}: what the trainer does")
    bottom.legend(ncols=3, fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)
