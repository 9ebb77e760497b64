"""Held-out: what evaluations during a run found beyond their accuracy -> one figure."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from .curves import Columns, Curve, finish, line
from .style import Theme, new_figure

PASS, KIND, OF_KIND = "eval/pass_at_", "eval/kind/", "/accuracy"
MOST = 5
"""Lines of a panel; more kinds of problems have none, the table of `openrlhf-tir eval` does."""


def ks_of(columns: Columns) -> list[int]:
    """The k > 1 of pass@k that the run has; none where it was not evaluated, or by one sample a problem."""
    return sorted(int(name.removeprefix(PASS)) for name in columns if name.startswith(PASS))


def names_of_evaluated(columns: Columns, k: int) -> list[str]:
    """Environments that have pass@k of their own: those of a run with several."""
    end = f"/pass_at_{k}"
    return sorted(name.removeprefix("eval/").removesuffix(end) for name in columns if name.endswith(end))


def held_out(columns: Columns, theme: Theme) -> Figure | None:
    """Above: one, some of k and all of n responses right. Below: each kind of problem, where there are a few."""
    ks = ks_of(columns)
    kinds = sorted(
        name.removeprefix(KIND).removesuffix(OF_KIND)
        for name in columns
        if name.startswith(KIND) and name.endswith(OF_KIND)
    )
    if not ks:
        return None
    few = 2 <= len(kinds) <= MOST
    envs = [env for env in names_of_evaluated(columns, ks[-1]) if env]
    rows = 1 + few + bool(envs)
    figure, axes = new_figure(2.9 * rows, rows=rows)
    shown = ks if len(ks) <= 3 else [ks[0], ks[len(ks) // 2], ks[-1]]
    line(axes[0], columns, f"eval/pass_hat_{ks[-1]}", f"all of {ks[-1]}", theme.series[4])
    line(axes[0], columns, "eval/accuracy", "one", theme.series[0])
    for k, colour in zip(shown, theme.series[1:4], strict=False):
        line(axes[0], columns, f"{PASS}{k}", f"some of {k}", colour)
    for kind, colour in zip(kinds if few else (), theme.series, strict=False):
        line(axes[1], columns, f"{KIND}{kind}{OF_KIND}", kind, colour)
    for env, colour in zip(envs[:MOST], theme.series, strict=False):
        line(axes[-1], columns, f"eval/{env}/pass_at_{ks[-1]}", env, colour)
    titles = ["Right responses", *(["One response, by kind of problem"] if few else [])]
    titles += [f"pass@{ks[-1]}, by environment"] if envs else []
    for ax, title in zip(axes, titles, strict=True):
        ax.set(title=title, ylim=(0, 1.02), ylabel="held-out problems")
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, 0))
    return finish(figure, axes)


HELD_OUT_CURVES = (
    Curve(
        "held_out",
        "Held-out problems",
        "pass@k and pass^n, unbiased. Accuracy that rises while some of many stays: the model comes to say more often"
        " what it could say before; some of many that falls: it loses answers.",
        held_out,
    ),
)
