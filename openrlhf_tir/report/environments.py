"""Environments: columns of metrics.jsonl -> a table and a figure that show the environments of a run apart. Nothing
where there is one only."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from .curves import Columns, Curve, finish, line
from .style import Theme, new_figure

HEAD = (
    "environment", "groups kept", "dropped", "failed", "trained", "accuracy, first and last step", "calls",
    "s per call", "bias: length", "difficulty",
)  # fmt: skip


def names_of(columns: Columns) -> list[str]:
    return sorted({name.split("/")[1] for name in columns if name.startswith("env/")})


def rows_of(columns: Columns) -> list[tuple[str, ...]]:
    """One row of HEAD's cells per environment: sums over the run, the last step's figures."""
    trained = {env: _sum(columns, f"selection/env/{env}/trained") for env in names_of(columns)}
    rows: list[tuple[str, ...]] = []
    for env, n in trained.items():
        of = f"env/{env}"
        dropped, failed = (
            sum(_sum(columns, name) for name in columns if name.startswith(f"{of}/{what}/"))
            for what in ("drops", "failed")
        )
        accuracy = [v for v in columns.get(f"{of}/accuracy", ()) if v is not None]
        rows.append(
            (
                env,
                f"{_sum(columns, f'{of}/kept'):,.0f}",
                f"{dropped:,.0f}",
                f"{failed:,.0f}",
                f"{n:,.0f} ({n / (sum(trained.values()) or 1):.0%})",
                f"{accuracy[0]:.1%} → {accuracy[-1]:.1%}" if accuracy else "–",
                _last(columns, f"{of}/calls_mean"),
                _last(columns, f"{of}/call_seconds_mean"),
                _last(columns, f"{of}/selection_bias/length"),
                _last(columns, f"{of}/selection_bias/difficulty"),
            )
        )
    return rows


def _sum(columns: Columns, name: str) -> float:
    return sum(v or 0 for v in columns.get(name, ()))


def _last(columns: Columns, name: str) -> str:
    found = next((v for v in reversed(columns.get(name, [])) if v is not None), None)
    return "–" if found is None else f"{found:.3g}"


def environments(columns: Columns, theme: Theme) -> Figure | None:
    figure, (left, middle, right) = new_figure(2.9, columns=3)
    drawn = False
    for i, env in enumerate(names_of(columns)):
        colour = theme.series[i % len(theme.series)]
        for ax, metric in ((left, "accuracy"), (middle, "calls_mean"), (right, "call_seconds_mean")):
            drawn = line(ax, columns, f"env/{env}/{metric}", env, colour) or drawn
    if not drawn:
        return None
    left.set(title="Accuracy", ylabel="share of responses", ylim=(0, 1.02))
    left.yaxis.set_major_formatter(PercentFormatter(1.0, 0))
    middle.set(title="Calls", ylabel="per response", ylim=(0, None))
    right.set(title="Latency", ylabel="seconds per call", ylim=(0, None))
    return finish(figure, [left, middle, right])


CAPTION = "Each environment by itself: how much of it was right, what its responses called, and how long a call took."
ENV_CURVES = (Curve("environments", "Environments", CAPTION, environments),)
