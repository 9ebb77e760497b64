"""Late training, simulated: python -m benchmarks.pipeline.late_training [--quick]

The filters keep 80 % of the groups, then fewer and fewer, 10 % at the end; in a second run 10 %, and from half time on
50 %. The learner is as fast as saturated engines at full acceptance, so that the engines are the bound throughout.
Depth `auto`, by itself and with what docs/rollout.md advises for a fast learner (fast_learner.py), beside what
staleness allows, (S+1) B, and beside 2 B.

    efficiency = sum over steps of B / (acceptance * saturated groups per second), over the sum of their simulated
                 seconds
    discarded  = groups trained too late or surplus, of those accepted

Everything runs on a virtual clock with modelled engines; benchmarks.pipeline measures the same on the wall clock.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

from benchmarks.command import command_parser
from openrlhf_tir.simulation.run import Result, configure, simulate
from openrlhf_tir.simulation.workload import SEED_WORKLOAD, Acceptance, Workload

from .fast_learner import ADVISED

STALENESS = (2, 3, 4, 8)
BAR = 0.9
"""The share of the engines' best that depth `auto` must reach."""
WARM_UP = 2
LAST = 10


def seconds_per_step(r: Result, steps: int) -> list[float]:
    times = r.rows["time"]
    return [b - a for a, b in pairwise(times)][WARM_UP - 1 : steps - 1]


def efficiency(workload: Workload, acceptance: Acceptance, r: Result, last: int = 0) -> float:
    """The share of the engines' best, over all counted steps or the last few."""
    ideal = [
        workload.prompts / acceptance.at(step) / workload.saturated_groups_per_s
        for step in range(WARM_UP, acceptance.steps)
    ]
    return sum(ideal[-last:]) / sum(seconds_per_step(r, acceptance.steps)[-last:])


def simulated(
    seed: Workload, acceptance: Acceptance, S: int | None, depth: int | None = None, **settings: str
) -> Result:
    """As many steps as the acceptance has, with a learner as fast as saturated engines at full acceptance; and S+1
    more, which do not count: at its end a run admits no more groups than it still needs, and at 10 % acceptance a fixed
    depth then crawls. `settings`: more of [pipeline]."""
    cfg = configure(seed, mode="pipeline", max_staleness=S, depth=depth, **settings)
    cfg = cfg.model_copy(
        update={
            "train": cfg.train.model_copy(update={"max_steps": acceptance.steps + cfg.pipeline.requested_staleness + 1})
        }
    )
    return simulate(seed, cfg, acceptance=acceptance, learner_s=seed.prompts / seed.saturated_groups_per_s)


def auto_over_best_fixed(seed: Workload) -> dict[str, float]:
    """Depth `auto` over the best of (S+1) B and 2 B, the least of all S and acceptances: constant, falling, jumping."""
    steps = 20
    acceptances = {
        "constant": Acceptance(0.5, 0.5, steps),
        "falling": replace(seed.late, steps=steps),
        "jumping": replace(seed.jump, steps=steps),
    }
    facts: dict[str, float] = {}
    for S in STALENESS:
        for name, acceptance in acceptances.items():
            shares = {
                depth: efficiency(seed, acceptance, simulated(seed, acceptance, S, depth))
                for depth in (None, (S + 1) * seed.prompts, 2 * seed.prompts)
            }
            auto = shares.pop(None)
            facts[f"auto_over_best_fixed_{name}_S{S}"] = round(auto / max(shares.values()), 3)
            print(
                f"S = {S}, acceptance {name}: auto {auto:.3f} of the engines' best, best fixed"
                f" {max(shares.values()):.3f}",
                flush=True,
            )
    return facts | {"auto_over_best_fixed_min": min(facts.values())}


def headline(seed: Workload) -> dict[str, Any]:
    """The keys of `benchmarks.pipeline --late`, from the virtual clock."""
    ways: dict[str, dict[str, Any]] = {"auto": {}, "advised": ADVISED.settings, "fixed": {"depth": 2 * seed.prompts}}
    late = {name: efficiency(seed, seed.late, simulated(seed, seed.late, None, **way)) for name, way in ways.items()}
    return {f"late_training_{name}": round(share, 3) for name, share in late.items()} | {
        "surplus_share_after_jump": round(simulated(seed, seed.jump, None).surplus_share, 4),
        "late_training_clock": "virtual",
    }


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="16 steps at one staleness bound")
    parser.add_argument(
        "--depths",
        action="store_true",
        help="only auto over the best fixed depth, at every staleness bound and acceptance, 20 steps each",
    )
    args = parser.parse_args()
    quick, seed = args.quick, Workload.read(SEED_WORKLOAD)
    if args.depths:
        print(json.dumps(auto_over_best_fixed(seed)))
        return
    steps = 16 if quick else seed.late.steps
    fall, jump = replace(seed.late, steps=steps), replace(seed.jump, steps=steps)
    facts: dict[str, float] = {}
    for S in STALENESS[2:3] if quick else STALENESS:
        ways: dict[str, dict[str, Any]] = {
            "auto": {},
            "advised": ADVISED.settings,
            "fixed": {"depth": (S + 1) * seed.prompts},
            "fixed_2B": {"depth": 2 * seed.prompts},
        }
        for name, way in ways.items():
            r = simulated(seed, fall, S, **way)
            share, last = efficiency(seed, fall, r), efficiency(seed, fall, r, LAST)
            surplus = r.ends.get("requeued/surplus", 0)
            facts[f"late_{name}_S{S}"] = round(share, 3)
            print(
                f"falling, S = {S}, {name}: {share:.3f} of the engines' best, in the last steps {last:.3f};"
                f" surplus {surplus}; token age {r.staleness_mean:.2f} (max {r.staleness_max}); waits for the gate"
                f" {r.phases_s['wait for gate'] / r.steps:.0f} s a step",
                flush=True,
            )
            facts[f"discarded_{name}_S{S}"] = surplus
        r = simulated(seed, jump, S)
        facts[f"surplus_share_after_jump_S{S}"] = round(r.surplus_share, 4)
        print(
            f"jump, S = {S}: surplus {r.ends.get('requeued/surplus', 0)} groups, {r.surplus_share:.2%} of those"
            f" accepted; token age max {r.staleness_max}",
            flush=True,
        )
    reached = [S for S in STALENESS if facts.get(f"late_auto_S{S}", 0.0) >= BAR]
    print(json.dumps(facts | {"smallest_S_at_bar": min(reached, default=None)}))


if __name__ == "__main__":
    main()
