"""Table: figures of sets and settings -> a table for a terminal, and the tree that --out writes."""

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


class Result(Protocol):
    name: str
    setting: float | None
    figures: dict[str, Any]


def as_json(plan: Plan, results: Sequence[Result]) -> dict[str, Any]:
    """{"swept", "suites": {name: figures, or in a sweep {value: figures}}, "groups"}."""
    suites: dict[str, Any] = {}
    for r in results:
        if r.setting is None:
            suites[r.name] = r.figures
        else:
            suites.setdefault(r.name, {})[f"{r.setting:g}"] = r.figures
    out = {"model": plan.cfg.actor.model_name_or_path, "swept": plan.swept or None, "suites": suites}
    groups = {} if plan.swept else bfcl_groups({r.name: r.figures for r in results})
    return out | ({"groups": groups} if groups else {})


def table(plan: Plan, results: Sequence[Result]) -> Table:
    """One row per set and setting; shares in percent with their intervals."""
    from rich.table import Table

    out = Table(title=f"Evaluation of {plan.cfg.actor.model_name_or_path}", title_justify="left")
    played = any("env" in r.figures for r in results)  # then pass^n is shown: tau-bench's own measure
    out.add_column("set")
    for column in (
        *([plan.swept] if plan.swept else []), "problems", "n", "avg@n", "pass@n",
        *(["pass^n"] if played else []), "maj@n", *(label for _, label in TOOLS), "tokens",
    ):  # fmt: skip
        out.add_column(column, justify="right")
    for r in results:
        f, n = r.figures, r.figures["n"]
        out.add_row(
            r.name,
            *([f"{r.setting:g}"] if r.setting is not None else []),
            f"{f['problems']}",
            f"{n}",
            percent(f[f"avg@{n}"]),
            percent(f["pass@k"][str(n)]),
            *([percent(f["pass^k"][str(n)])] if played else []),
            percent(f["maj@k"][str(n)]),
            *(number(f["tools"][name]) for name, _ in TOOLS),
            number(f["tools"]["response_tokens"], ".0f"),
        )
    return out


def env_lines(results: Sequence[Result]) -> list[str]:
    """What the environments said, a line per set and setting; none of which none did."""
    return [
        f"{r.name}{'' if r.setting is None else f' {r.setting:g}'}: "
        + ", ".join(f"{name} {number(value)}" for name, value in r.figures["env"].items())
        for r in results
        if "env" in r.figures
    ]


def percent(value: Sequence[float | None]) -> str:
    """Value and interval, the value alone where there is none."""
    middle, low, high = value
    if middle is None:
        return "-"
    return f"{100 * middle:.1f}" + ("" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]")


def number(value: Sequence[float | None], form: str = ".2f") -> str:
    return "-" if value[0] is None else format(value[0], form)
