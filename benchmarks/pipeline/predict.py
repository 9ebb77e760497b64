"""python -m benchmarks.pipeline.predict: the table of `benchmarks.pipeline` as `openrlhf-tir simulate` predicts it. No
wall clock is involved.

The same plans on the virtual clock: the real loop, budget and gate around modelled engines, tools and learner; of
sync_rollout, which is no mode of the loop, the mean step.
"""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

from benchmarks.command import command_parser, output_file
from openrlhf_tir.simulation.engine_model import EngineModel
from openrlhf_tir.simulation.run import Result, batch_rollout_s, simulate
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.simulation.workload import PROMPT_TOKENS, Workload
from openrlhf_tir.types import GroupKey

from .parts import SYNC_ROLLOUT, Plan
from .record import ModeFigures
from .table import lines, markdown, plot

AFTER_THE_END = "requeued/end_of_run"
"""Groups that were under way when the simulation stopped; the measured run is cut before."""
SPLIT = {
    "wait for groups": "replay_wait",
    "wait for gate": "gate_wait",
    "drain": "drain",
    "accumulate": "accumulate",
    "step": "step",
    "push": "push",
}
"""The simulation's phases by the benchmark's names."""


def simulated(w: Workload, plan: Plan) -> Result:
    """With so many steps after the measured that its end does not show: the measured run is cut in mid-training too."""
    cfg = plan.config(w, "simulated")
    steps = plan.steps + cfg.pipeline.requested_staleness + 1
    cfg = cfg.model_copy(update={"train": cfg.train.model_copy(update={"max_steps": steps})})
    return simulate(w, cfg, acceptance=plan.acceptance, learner_s=plan.learner_s, warm_up=plan.warmup)


def step_seconds(plan: Plan, result: Result) -> float:
    """Over the steps that the benchmark counts."""
    times = result.rows["time"]
    return (times[plan.steps - 1] - times[plan.warmup - 1]) / (plan.steps - plan.warmup)


def predict(w: Workload, plan: Plan) -> float:
    """Seconds of a step."""
    return sync_rollout_seconds(w, plan) if plan.mode == SYNC_ROLLOUT else step_seconds(plan, simulated(w, plan))


def sync_rollout_seconds(w: Workload, plan: Plan) -> float:
    """Mean step of the baseline, of the batches that the benchmark counts: per turn the slowest engine, then the calls
    in line; train; push."""

    async def segment(engine: EngineModel, keys: list[tuple[GroupKey, int]], turn: int) -> None:
        scripts = [w.script(k, i) for k, i in keys]
        before = (PROMPT_TOKENS + sum(s.segments[:turn]) + sum(s.observations[:turn]) for s in scripts)
        fresh = [
            s.observations[turn - 1] if turn else PROMPT_TOKENS * (i == 0)
            for s, (_, i) in zip(scripts, keys, strict=True)
        ]
        await asyncio.gather(
            *(
                engine.generate(n, s.segments[turn], cached_tokens=n - f)
                for n, s, f in zip(before, scripts, fresh, strict=True)
            )
        )

    async def rollout(step: int) -> float:
        loop = asyncio.get_running_loop()
        keys = [(GroupKey(0, step * w.prompts + p), i) for p in range(w.prompts) for i in range(w.samples_per_prompt)]
        engines = [EngineModel(w.engine, loop) for _ in range(w.engine.count)]
        for turn in range(w.tool_calls + 1):
            await asyncio.gather(*(segment(engine, keys[e :: len(engines)], turn) for e, engine in enumerate(engines)))
            if turn < w.tool_calls:
                await asyncio.sleep(sum(w.script(k, i).latencies_s[turn] for k, i in keys))
        return loop.time()

    counted = range(plan.warmup, plan.steps)
    return sum(run(rollout(step)) for step in counted) / len(counted) + plan.learner_s + w.engine.weight_push_s


def figures(w: Workload, plan: Plan) -> ModeFigures:
    """What the wall-clock benchmark would record, as far as a simulation knows it."""
    if plan.mode == SYNC_ROLLOUT:
        step_s = sync_rollout_seconds(w, plan)
        split = {
            "replay_wait": step_s - plan.learner_s - w.engine.weight_push_s,
            "step": plan.learner_s,
            "push": w.engine.weight_push_s,
        }
        idle, use, ages = math.nan, w.prompts / w.saturated_groups_per_s / step_s, {0: 1}
        learner_idle, discarded = 1 - plan.learner_s / step_s, 0
    else:
        r = simulated(w, plan)

        def over(name: str) -> float:
            """The growth of a running total over a counted step."""
            return (r.rows[name][plan.steps - 1] - r.rows[name][plan.warmup - 1]) / (plan.steps - plan.warmup)

        step_s = over("time")
        split = {short: over(f"{name}_s") for name, short in SPLIT.items()}
        idle, learner_idle = 1 - over("engine_busy_s") / w.engine.count / step_s, 1 - over("learner_busy_s") / step_s
        use, ages = over("engine_tokens") / (step_s * w.engine.count * w.engine.saturated_tokens_per_s), r.staleness
        discarded = sum(
            n for end, n in r.ends.items() if end.startswith(("failed/", "requeued/")) and end != AFTER_THE_END
        )
    tokens = sum(ages.values())
    return ModeFigures(
        name=plan.name,
        step_s=step_s,
        steps_s=[],
        trained_tokens_per_s=w.prompts * w.group_tokens / step_s,
        split={name: split.get(name, 0.0) for name in SPLIT.values()},
        learner_idle=learner_idle,
        engine_idle=idle,
        engine_use=use,
        staleness={age: n / tokens for age, n in ages.items()},
        trained_groups=w.prompts * (plan.steps - plan.warmup),
        filtered_groups=0,
        discarded_groups=discarded,
        surplus_groups=0,
        controller_cpu_s_per_step=math.nan,
        machine_busy=math.nan,
        rolling=math.nan,
        buffered=math.nan,
    )


def main() -> None:
    from .__main__ import FAST_LEARNER, MODES, RATIOS, SEED_FILE, bound_s, fast_learner, plans

    parser = command_parser(__doc__)
    parser.add_argument("--workload", type=Path, default=SEED_FILE, metavar="TOML", help="another workload")
    parser.add_argument(
        "--ratios",
        type=float,
        nargs="+",
        default=RATIOS,
        metavar="T/R",
        help="learner over rollout seconds (default: %(default)s)",
    )
    parser.add_argument("--steps", type=int, help="per run, the first two uncounted (default: the workload's)")
    parser.add_argument("--plot", type=output_file, metavar="PATH", help="write the picture there")
    args = parser.parse_args()
    args.time_scale, args.modes, w = 1.0, MODES, Workload.read(args.workload)
    args.steps = args.steps or w.steps
    rollout_s = batch_rollout_s(w)
    print(f"R = {rollout_s:.1f} s, saturated engines {bound_s(w, 0):.1f} s per batch\n")
    results = {
        (ratio, plan.name): [figures(w, plan)] for ratio in args.ratios for plan in plans(w, rollout_s, ratio, args)
    }
    table = lines(results, {})
    print(markdown(table))
    if args.plot:
        plot(table, {r: bound_s(w, r * rollout_s) for r in args.ratios}, args.plot, "Simulated cluster")
    if FAST_LEARNER in args.ratios:
        print(json.dumps(fast_learner(w, results, "virtual")))


if __name__ == "__main__":
    main()
