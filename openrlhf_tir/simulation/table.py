"""Results of simulations as tables for a person: one column per run, or one row per plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.table import Table

from .planner import Plan
from .run import Result

FIGURES: dict[str, Callable[[Result], str]] = {
    "step": lambda r: f"{r.step_s:.1f} s",
    "of the fastest possible": lambda r: f"{r.efficiency:.1%} of {r.bound_s:.1f} s",
    "trained groups / h": lambda r: f"{3600 * r.trained_groups / r.seconds:,.0f}",
    "trained tokens / s": lambda r: f"{r.trained_tokens / r.seconds:,.0f}",
    "engines idle": lambda r: f"{r.engine_idle:.1%}",
    "engines' decode rate used": lambda r: f"{r.engine_use:.1%}",
    "learner idle": lambda r: f"{r.learner_idle:.1%}",
    "waits for replay, per step": lambda r: f"{r.phases_s['wait for replay'] / r.steps:.1f} s",
    "waits for the gate": lambda r: f"{r.phases_s['wait for gate'] / r.steps:.1f} s",
    "drains and pushes": lambda r: f"{(r.phases_s['drain'] + r.phases_s['push']) / r.steps:.1f} s",
    "accepted by the filters": lambda r: f"{r.acceptance:.1%}",
    "surplus": lambda r: f"{r.ends.get('requeued/surplus', 0)} groups ({r.surplus_share:.2%})",
    "issued again after faults": lambda r: f"{again(r)} groups",
    "token age, mean (max)": lambda r: f"{r.staleness_mean:.2f} ({r.staleness_max}) versions",
    "tokens by age": lambda r: "  ".join(f"{age}: {share:.0%}" for age, share in ages(r).items()),
}


def again(r: Result) -> int:
    return sum(
        n
        for end, n in r.ends.items()
        if end.startswith("requeued/") and end not in ("requeued/surplus", "requeued/end_of_run")
    )


def ages(r: Result) -> dict[int, float]:
    """Age in versions -> share of the trained tokens."""
    total = sum(r.staleness.values())
    return {age: n / total for age, n in r.staleness.items()}


def table(results: Mapping[str, Result]) -> Table:
    """One column per simulated run."""
    out = Table("simulated", *results)
    for label, figure in FIGURES.items():
        out.add_row(label, *(figure(r) for r in results.values()))
    return out


def plan_table(found: list[Plan], chosen: Plan) -> Table:
    """One row per split and staleness bound; the recommended one is marked."""
    out = Table(
        "", "rollout GPUs", "training GPUs", "S", "groups / h", "engines idle", "learner idle", "token age",
        title="simulated plans",
    )  # fmt: skip
    for p in found:
        out.add_row(
            "->" if p is chosen else "",
            f"{p.split.rollout_gpus} ({p.split.engines} engines)",
            str(p.split.learner_gpus),
            str(p.staleness),
            f"{3600 * p.throughput:,.0f}",
            f"{p.result.engine_idle:.0%}",
            f"{p.result.learner_idle:.0%}",
            f"{p.result.staleness_mean:.2f} ({p.result.staleness_max})",
            style="bold green" if p is chosen else "",
        )
    return out
