"""The figures of sets and settings as a table for a terminal, and as the JSON that --out writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from .plan import Plan
from .scores.groups import bfcl_groups

if TYPE_CHECKING:
    from rich.table import Table

TOOLS = (
    ("calls", "calls"),
    ("tool_productivity", "right per call"),
    ("code_ratio", "code ratio"),
    ("code_in_correct", "code in correct"),
)
"""(figure, column head) of the use of tools."""


class Result(Protocol):
    """The result of one set under one setting (cluster/jobs/evaluate_suites.py)."""

    name: str
    setting: float | None
    figures: dict[str, Any]


def as_json(plan: Plan, results: Sequence[Result]) -> dict[str, Any]:
    """Return {"model", "swept", "suites": {name: figures, or in a sweep {value: figures}}, "groups"}."""
    suites: dict[str, Any] = {}
    for result in results:
        if result.setting is None:
            suites[result.name] = result.figures
        else:
            suites.setdefault(result.name, {})[f"{result.setting:g}"] = result.figures
    out = {"model": plan.cfg.actor.model_name_or_path, "swept": plan.swept or None, "suites": suites}
    groups = {} if plan.swept else bfcl_groups({result.name: result.figures for result in results})
    return out | ({"groups": groups} if groups else {})


def table(plan: Plan, results: Sequence[Result]) -> Table:
    """Return a table with one row per set and setting; shares are percentages with their intervals."""
    from rich.table import Table
    from rich.text import Text

    # A name may have [words] that rich would take for markup.
    out = Table(title=Text(f"Evaluation of {plan.cfg.actor.model_name_or_path}"), title_justify="left")
    # If an environment reports figures, pass^n is shown, which is tau-bench's own measure.
    played = any("env" in result.figures for result in results)
    out.add_column("set")
    for column in (
        *([plan.swept] if plan.swept else []), "problems", "n", "avg@n", "pass@n",
        *(["pass^n"] if played else []), "maj@n", *(label for _, label in TOOLS), "tokens",
    ):  # fmt: skip
        out.add_column(column, justify="right")
    for result in results:
        figures = result.figures
        n = figures["n"]
        out.add_row(
            Text(result.name),
            *([f"{result.setting:g}"] if result.setting is not None else []),
            f"{figures['problems']}",
            f"{n}",
            percent(figures[f"avg@{n}"]),
            percent(figures["pass@k"][str(n)]),
            *([percent(figures["pass^k"][str(n)])] if played else []),
            percent(figures["maj@k"][str(n)]),
            *(number(figures["tools"][name]) for name, _ in TOOLS),
            number(figures["tools"]["response_tokens"], ".0f"),
        )
    return out


def env_lines(results: Sequence[Result]) -> list[str]:
    """Return the figures that environments reported, one line per set and setting."""
    return [
        f"{result.name}{'' if result.setting is None else f' {result.setting:g}'}: "
        + ", ".join(f"{name} {number(value)}" for name, value in result.figures["env"].items())
        for result in results
        if "env" in result.figures
    ]


def percent(value: Sequence[float | None]) -> str:
    """Return a value as a percentage with its interval, or without if there is none."""
    middle, low, high = value
    if middle is None:
        return "-"
    return f"{100 * middle:.1f}" + ("" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]")


def number(value: Sequence[float | None], form: str = ".2f") -> str:
    """Return a value without its interval, "-" if there is none."""
    return "-" if value[0] is None else format(value[0], form)
