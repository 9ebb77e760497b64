"""A learner four times as fast as the rollout of a batch, simulated: python -m benchmarks.pipeline.fast_learner
[--quick]

The longest responses decide then (staleness_bound.py). Compares depth and, each with and without, the fast lane
(openrlhf_tir/pipeline/lane), early accumulation (pipeline/scheduler/early_accumulation.py) and pushes that keep the KV
cache (pipeline.kv_after_push), on the seed workload and on one with five slow tools and a tail to 16k tokens, at S = 4.
Beside them stand `one_step` and the bound, which is max(saturated engines, learner). Nothing is emulated on the wall
clock. The last line is one JSON object."""

from __future__ import annotations

import json
from dataclasses import dataclass

from benchmarks.command import command_parser
from openrlhf_tir.simulation.run import Result, batch_rollout_s
from openrlhf_tir.simulation.workload import SEED_WORKLOAD, Workload

from .parts import Plan
from .predict import simulated, step_seconds
from .workloads import TOOLS_WORKLOAD

RATIO = 0.25
"""Learner over rollout seconds."""
S = 4


@dataclass(frozen=True, slots=True)
class Way:
    """One row: what the pipeline is told. `batches`: of a fixed depth; None: auto."""

    name: str
    fast_lane: str = "off"
    batches: int | None = None
    early: str = "off"
    kv: str = "recompute"

    @property
    def settings(self) -> dict[str, str]:
        """Settings of [pipeline], but for the depth."""
        return {"fast_lane": self.fast_lane, "early_accumulation": self.early, "kv_after_push": self.kv}


WAYS = (
    Way("depth auto"),
    Way("depth auto, fast lane", "auto"),
    Way(f"depth {S + 1} B", batches=S + 1),
    Way(f"depth {S + 1} B, fast lane", "auto", S + 1),
    Way("depth auto, early", early="on"),
    Way("depth auto, early, fast lane", "auto", early="on"),
    Way(f"depth {S + 1} B, early", batches=S + 1, early="on"),
    Way(f"depth {S + 1} B, early, fast lane", "auto", S + 1, "on"),
    Way("depth auto, KV kept", kv="keep"),
    Way(f"depth {S + 1} B, early, fast lane, KV kept", "auto", S + 1, "on", "keep"),
    Way("depth auto, early, fast lane, KV kept", "auto", early="on", kv="keep"),
)
ADVISED = WAYS[-1]
"""What docs/rollout.md tells the user of a fast learner to set, on any workload."""


def plan_of(w: Workload, learner_s: float, way: Way | None, steps: int) -> Plan:
    """`way` None: one_step."""
    if way is None:
        return Plan("one_step", learner_s, 1.0, steps, 2, w.acceptance)
    return Plan(
        "pipeline",
        learner_s,
        1.0,
        steps,
        2,
        w.acceptance,
        S,
        way.batches and way.batches * w.prompts,
        way.fast_lane,
        way.early,
        way.kv,
    )


def compared(name: str, w: Workload, steps: int) -> dict[str, tuple[float, Result]]:
    """Way -> seconds of a counted step, and the run; "one_step" is among them."""
    learner_s = RATIO * batch_rollout_s(w)
    found: dict[str, tuple[float, Result]] = {}
    for way in (None, *WAYS):
        plan = plan_of(w, learner_s, way, steps)
        r = simulated(w, plan)
        label = way.name if way else "one_step"
        found[label] = step_seconds(plan, r), r
        step_s = found[label][0]
        print(
            f"{name}, {label}: {step_s:.1f} s a step, {found['one_step'][0] / step_s:.2f}x one_step,"
            f" {r.bound_s / step_s:.3f} of the bound; token age {r.staleness_mean:.2f} (max {r.staleness_max})",
            flush=True,
        )
    return found


def headline(steps: int | None = None) -> dict[str, float | str]:
    """The keys of `benchmarks.pipeline`: the settings that are advised, the same on both workloads."""
    facts: dict[str, float | str] = {"efficiency_fast_learner_clock": "virtual"}
    shares = []
    for name, path in (("seed", SEED_WORKLOAD), ("tools", TOOLS_WORKLOAD)):
        w = Workload.read(path)
        found = compared(name, w, steps or w.steps)
        step_s, r = found[ADVISED.name]
        shares.append(r.bound_s / step_s)
        facts[f"efficiency_fast_learner_{name}"] = round(shares[-1], 3)
        if name == "seed":
            facts["speedup_vs_one_step_fast_learner_s4"] = round(found["one_step"][0] / step_s, 2)
            facts["speedup_vs_one_step_fast_learner_s4_clock"] = "virtual"
    return facts | {"efficiency_fast_learner": round(min(shares), 3)}


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="6 steps instead of the workloads' 12: a smoke test")
    steps = 6 if parser.parse_args().quick else None
    print(json.dumps(headline(steps)))


if __name__ == "__main__":
    main()
