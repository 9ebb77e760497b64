"""A table and a figure that show each environment of a run by itself. Both are empty for a run with one environment."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ...telemetry.metrics import last, total
from .curves import Columns, Plot, finish, line
from .style import COLORS, new_figure

HEAD = (
    "environment", "groups kept", "dropped", "failed", "trained", "accuracy, first and last step", "calls",
    "s per call", "bias: length", "difficulty",
)  # fmt: skip
"""Column heads of the table."""


def names_of(columns: Columns) -> list[str]:
    """Return the names of the environments that have metrics of their own."""
    return sorted({name.split("/")[1] for name in columns if name.startswith("env/")})


def rows_of(columns: Columns) -> list[tuple[str, ...]]:
    """Return one row of cells per environment, in the order of HEAD.

    Counts are sums over the run; the other figures are those of the last step that has them.
    """
    trained = {env: total(columns, f"selection/env/{env}/trained") for env in names_of(columns)}
    rows: list[tuple[str, ...]] = []
    for env, trained_groups in trained.items():
        prefix = f"env/{env}"
        accuracy = [value for value in columns.get(f"{prefix}/accuracy", ()) if value is not None]
        share = trained_groups / (sum(trained.values()) or 1)
        rows.append(
            (
                env,
                f"{total(columns, f'{prefix}/kept'):,.0f}",
                f"{_sum_over_reasons(columns, f'{prefix}/drops/'):,.0f}",
                f"{_sum_over_reasons(columns, f'{prefix}/failed/'):,.0f}",
                f"{trained_groups:,.0f} ({share:.0%})",
                f"{accuracy[0]:.1%} → {accuracy[-1]:.1%}" if accuracy else "–",
                _last(columns, f"{prefix}/calls_mean"),
                _last(columns, f"{prefix}/call_seconds_mean"),
                _last(columns, f"{prefix}/selection_bias/length"),
                _last(columns, f"{prefix}/selection_bias/difficulty"),
            )
        )
    return rows


def _sum_over_reasons(columns: Columns, prefix: str) -> float:
    return sum(total(columns, name) for name in columns if name.startswith(prefix))


def _last(columns: Columns, name: str) -> str:
    value = last(columns, name)
    return "–" if value is None else f"{value:.3g}"


def environments(columns: Columns) -> Figure | None:
    """Draw accuracy, calls per response and seconds per call, with a line per environment."""
    figure, (left, middle, right) = new_figure(2.9, columns=3)
    drawn = False
    for i, env in enumerate(names_of(columns)):
        color = COLORS[i % len(COLORS)]
        for ax, metric in ((left, "accuracy"), (middle, "calls_mean"), (right, "call_seconds_mean")):
            drawn = line(ax, columns, f"env/{env}/{metric}", env, color) or drawn
    if not drawn:
        return None
    left.set(title="Accuracy", ylabel="share of responses", ylim=(0, 1.02))
    left.yaxis.set_major_formatter(PercentFormatter(1.0, 0))
    middle.set(title="Calls", ylabel="per response", ylim=(0, None))
    right.set(title="Latency", ylabel="seconds per call", ylim=(0, None))
    return finish(figure, [left, middle, right])


CAPTION = "Each environment by itself: how much of it was right, what its responses called, and how long a call took."
ENV_CURVES = (Plot("environments", "Environments", CAPTION, environments),)
