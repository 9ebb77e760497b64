"""Print the results of simulations as tables: one column per run, or one row per plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.table import Table

from .planner import Plan
from .run import Result

FIGURES: dict[str, Callable[[Result], str]] = {
    "step": lambda run: f"{run.step_s:.1f} s",
    "of the fastest possible": lambda run: f"{run.efficiency:.1%} of {run.bound_s:.1f} s",
    "trained groups / h": lambda run: f"{3600 * run.trained_groups / run.seconds:,.0f}",
    "trained tokens / s": lambda run: f"{run.trained_tokens / run.seconds:,.0f}",
    "engines idle": lambda run: f"{run.engine_idle:.1%}",
    "engines' decode rate used": lambda run: f"{run.engine_use:.1%}",
    "learner idle": lambda run: f"{run.learner_idle:.1%}",
    "waits for groups, per step": lambda run: f"{run.phases_s['wait for groups'] / run.steps:.1f} s",
    "waits for the gate": lambda run: f"{run.phases_s['wait for gate'] / run.steps:.1f} s",
    "drains and pushes": lambda run: f"{(run.phases_s['drain'] + run.phases_s['push']) / run.steps:.1f} s",
    "accepted by the filters": lambda run: f"{run.acceptance:.1%}",
    "surplus": lambda run: f"{run.ends.get('requeued/surplus', 0)} groups ({run.surplus_share:.2%})",
    "issued again after faults": lambda run: f"{again(run)} groups",
    "token age, mean (max)": lambda run: f"{run.staleness_mean:.2f} ({run.staleness_max}) versions",
    "tokens by age": lambda run: "  ".join(f"{age}: {share:.0%}" for age, share in ages(run).items()),
}
"""Label of a row -> its text for one run."""


def again(result: Result) -> int:
    """Return the number of groups that were issued again after a fault."""
    return sum(
        count
        for end, count in result.ends.items()
        if end.startswith("requeued/") and end not in ("requeued/surplus", "requeued/end_of_run")
    )


def ages(result: Result) -> dict[int, float]:
    """Return the share of trained tokens by their age in versions."""
    total = sum(result.staleness.values())
    return {age: count / total for age, count in result.staleness.items()}


def table(results: Mapping[str, Result]) -> Table:
    """Return a table with one column per simulated run."""
    columns = Table("simulated", *results)
    for label, text_of in FIGURES.items():
        columns.add_row(label, *(text_of(result) for result in results.values()))
    return columns


def plan_table(plans: list[Plan], chosen: Plan) -> Table:
    """Return a table with one row per plan, in which the recommended one is marked."""
    rows = Table(
        "", "rollout GPUs", "training GPUs", "S", "groups / h", "engines idle", "learner idle", "token age",
        title="simulated plans",
    )  # fmt: skip
    for plan in plans:
        rows.add_row(
            "->" if plan is chosen else "",
            f"{plan.split.rollout_gpus} ({plan.split.engines} engines)",
            str(plan.split.learner_gpus),
            str(plan.staleness),
            f"{3600 * plan.throughput:,.0f}",
            f"{plan.result.engine_idle:.0%}",
            f"{plan.result.learner_idle:.0%}",
            f"{plan.result.staleness_mean:.2f} ({plan.result.staleness_max})",
            style="bold green" if plan is chosen else "",
        )
    return rows
