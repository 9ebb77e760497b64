"""A figure of what evaluations during a run measured beyond their accuracy."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from .curves import Columns, Plot, finish, line
from .style import COLORS, new_figure

PASS_AT = "eval/pass_at_"
KIND_PREFIX = "eval/kind/"
KIND_SUFFIX = "/accuracy"
MAX_LINES = 5
"""Lines of a panel. If there are more kinds of problems, only the table of `openrlhf-tir eval` shows them."""


def ks_of(columns: Columns) -> list[int]:
    """Return the k > 1 for which the run has pass@k; [] if it was not evaluated, or with one sample a problem."""
    return sorted(int(name.removeprefix(PASS_AT)) for name in columns if name.startswith(PASS_AT))


def names_of_evaluated(columns: Columns, k: int) -> list[str]:
    """Return the environments that have a pass@k of their own, as they do in a run with several environments."""
    suffix = f"/pass_at_{k}"
    names = (name.removesuffix(suffix).partition("/")[2] for name in columns if name.endswith(suffix))
    return sorted(name for name in names if name)


def held_out(columns: Columns) -> Figure | None:
    """Draw the shares of correct responses: at least one of k, a single one, and all n.

    Below follow a panel by kind of problem (for 2 to MAX_LINES kinds) and one by environment, if the run has several.
    """
    ks = ks_of(columns)
    kinds = sorted(
        name.removeprefix(KIND_PREFIX).removesuffix(KIND_SUFFIX)
        for name in columns
        if name.startswith(KIND_PREFIX) and name.endswith(KIND_SUFFIX)
    )
    if not ks:
        return None
    has_kinds = 2 <= len(kinds) <= MAX_LINES
    env_names = names_of_evaluated(columns, ks[-1])
    rows = 1 + has_kinds + bool(env_names)
    figure, axes = new_figure(2.9 * rows, rows=rows)
    shown = ks if len(ks) <= 3 else [ks[0], ks[len(ks) // 2], ks[-1]]
    line(axes[0], columns, f"eval/pass_hat_{ks[-1]}", f"pass^{ks[-1]} (all)", COLORS[4])
    line(axes[0], columns, "eval/accuracy", "mean", COLORS[0])
    for k, color in zip(shown, COLORS[1:4], strict=False):
        line(axes[0], columns, f"{PASS_AT}{k}", f"pass@{k} (any)", color)
    for kind, color in zip(kinds if has_kinds else (), COLORS, strict=False):
        line(axes[1], columns, f"{KIND_PREFIX}{kind}{KIND_SUFFIX}", kind, color)
    for env, color in zip(env_names[:MAX_LINES], COLORS, strict=False):
        line(axes[-1], columns, f"eval/{env}/pass_at_{ks[-1]}", env, color)
    titles = ["Right responses", *(["One response, by kind of problem"] if has_kinds else [])]
    titles += [f"pass@{ks[-1]}, by environment"] if env_names else []
    for ax, title in zip(axes, titles, strict=True):
        ax.set(title=title, ylim=(0, 1.02), ylabel="held-out problems")
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, 0))
    return finish(figure, axes)


HELD_OUT_CURVES = (
    Plot(
        "held_out",
        "Held-out problems",
        "pass@k and pass^k, unbiased. A mean that rises while pass@k stays: the model comes to say more often what it"
        " could say before. A pass@k that falls: it loses answers.",
        held_out,
    ),
)
