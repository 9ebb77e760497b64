"""Late training: the filters keep fewer and fewer groups (0.8 -> 0.1), and once suddenly more (0.1 -> 0.5). Depth
`auto`, by itself and with what docs/rollout.md advises for a fast learner, beside a fixed one.

    efficiency = sum over steps of (B / acceptance groups at the engines' saturated rate) / sum of measured step seconds

The learner is as fast as the engines at acceptance 1, so the engines are the bound throughout. The fixed depth is two
batches, what a pipeline with a queue of one batch holds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from openrlhf_tir.simulation.workload import Acceptance, Workload

from .cluster import Cluster
from .fast_learner import ADVISED
from .parts import Plan
from .record import ModeFigures
from .run import run

TIME_SCALE = 0.25
"""Saturated engines finish 2,048 trajectories in 12 s of wall-clock: two cores are 80 % busy with that."""
FIXED_BATCHES = 2
PARTS = ("auto", "advised", "jump", "fixed")


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

    async def measured(name: str, acceptance: Acceptance, **told: Any) -> ModeFigures:
        plan = Plan("pipeline", learner_s, scale or TIME_SCALE, steps, 2, acceptance, **told)
        f = await run(c, plan)
        facts[f"late_training_{name}"] = round(efficiency(w, plan, f.steps_s), 3)
        facts[f"late_training_{name}_discarded"] = f.discarded_groups
        print(
            f"late training, {name}: {efficiency(w, plan, f.steps_s):.3f} of the engines' best, {f.step_s:.1f} s/step,"
            f" machine {100 * f.machine_busy:.0f} %, age mean {f.staleness_mean:.2f}, surplus {f.surplus_groups},"
            f" discarded {f.discarded_groups}",
            flush=True,
        )
        return f

    if "auto" in parts:
        await measured("auto", fall)
    if "advised" in parts:
        await measured("advised", fall, fast_lane=ADVISED.fast_lane, early=ADVISED.early, kv=ADVISED.kv)
    if "jump" in parts:
        facts["surplus_share_after_jump"] = round(surplus_share(await measured("jump", jump)), 4)
    if "fixed" in parts:
        await measured("fixed", fall, depth=FIXED_BATCHES * w.prompts)
    return facts
