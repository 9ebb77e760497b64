"""Late training: the filters keep fewer and fewer groups (0.8 -> 0.1), and once suddenly more (0.1 -> 0.5). Depth
`auto` beside a fixed one.

    efficiency = sum over steps of (B / acceptance groups at the engines' saturated rate) / sum of measured step seconds

The learner is as fast as the engines at acceptance 1, so the engines are the bound throughout. The fixed depth is two
batches, what a pipeline with a queue of one batch holds.
"""

from __future__ import annotations

from collections.abc import Collection

from openrlhf_tir.simulation.workload import Acceptance, Workload

from .cluster import Cluster
from .parts import Plan
from .record import ModeFigures
from .run import run

TIME_SCALE = 0.25
"""Saturated engines finish 2,048 trajectories in 12 s of wall-clock: two cores are 80 % busy with that."""
FIXED_BATCHES = 2
PARTS = ("auto", "jump", "fixed")


def efficiency(w: Workload, plan: Plan, walls_s: list[float]) -> float:
    """`walls_s`: of the counted steps."""
    ideal = (w.prompts / w.saturated_groups_per_s / plan.acceptance.at(step) for step in range(plan.warmup, plan.steps))
    return sum(ideal) / sum(walls_s)


def surplus_share(f: ModeFigures) -> float:
    """Accepted groups that came too many, of all accepted ones."""
    return f.surplus_groups / max(1, f.trained_groups + f.surplus_groups)


async def late_training(c: Cluster, parts: Collection[str], steps: int, scale: float | None) -> dict[str, float | str]:
    """`parts`: of PARTS."""
    w = c.workload
    learner_s = w.prompts / w.saturated_groups_per_s
    fall, jump = Acceptance(w.late.start, w.late.end, steps), Acceptance(w.jump.start, w.jump.end, steps, jump=True)
    facts: dict[str, float | str] = {"late_training_clock": "wall"}

    async def measured(name: str, acceptance: Acceptance, depth: int | None = None) -> tuple[Plan, ModeFigures]:
        plan = Plan("pipeline", learner_s, scale or TIME_SCALE, steps, 2, acceptance, depth=depth)
        f = await run(c, plan)
        print(
            f"late training, {name}: {efficiency(w, plan, f.steps_s):.3f} of the engines' best, {f.step_s:.1f} s/step,"
            f" machine {100 * f.machine_busy:.0f} %, age mean {f.staleness_mean:.2f}, surplus {f.surplus_groups},"
            f" discarded {f.discarded_groups}",
            flush=True,
        )
        return plan, f

    if "auto" in parts:
        plan, f = await measured("auto", fall)
        facts |= {
            "late_training_auto": round(efficiency(w, plan, f.steps_s), 3),
            "late_training_auto_discarded": f.discarded_groups,
        }
    if "jump" in parts:
        _, f = await measured("jump", jump)
        facts["surplus_share_after_jump"] = round(surplus_share(f), 4)
    if "fixed" in parts:
        plan, f = await measured("fixed", fall, FIXED_BATCHES * w.prompts)
        facts["late_training_fixed"] = round(efficiency(w, plan, f.steps_s), 3)
    return facts
