"""python -m benchmarks.pipeline [--quick]: the pipeline's modes against each other and against the seed work's way, by
the wall clock.

    sync_rollout     the slow baseline, in this benchmark only: full-batch generation, then its tool calls one by one,
                     ..., then training
    sync             concurrent environments, no overlap with training (the seed's "async rollout")
    one_step         batch k+1 rolls while batch k trains
    pipeline_drain   streaming; a push waits until no group rolls
    pipeline         streaming; pushes into running generations
    advised          pipeline with what docs/rollout.md advises for a fast learner: S = 4, early accumulation, fast
                     lane, kept KV; where T < R

All go through the same rollout actors, engines, environment servers and, but for sync_rollout, the real main loop.
Emulated are only durations: decoding, tools, the learner's step and pushes sleep, on
openrlhf_tir/simulation/workload_seed.toml (`benchmarks.pipeline.cluster` says what is real). R is the measured rollout
of one batch, T = ratio x R the learner's step. A point runs at one time scale for all modes, slow enough for two cores:
`machine` near 100 % would mean that the emulation was too slow, not the mode. Repeats are interleaved; figures are
medians.

The bound is max(B groups at the engines' saturated rate, T). Seconds are emulated. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.command import command_parser, output_file
from openrlhf_tir.config import Pipeline
from openrlhf_tir.simulation.workload import SEED_WORKLOAD, Workload

from .cluster import Cluster, cluster
from .fast_learner import ADVISED as FAST_WAY
from .fast_learner import headline as fast_learner_headline
from .fast_learner import plan_of
from .late import PARTS, late_training
from .late_training import auto_over_best_fixed, headline
from .parts import SYNC_ROLLOUT, Plan
from .predict import predict
from .record import ModeFigures
from .run import run
from .table import lines, markdown, median_of, plot, text

SEED_FILE = SEED_WORKLOAD
STEP_WALL_S, ROLLOUT_WALL_S = 15.0, 20.0
"""A step at the bound takes at least so long by the wall clock, and the rollout of a batch by itself: what two cores
can carry of 2,048 trajectories with HTTP tools, spread over a step or all at once."""
RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)
ADVISED = "advised"
"""`pipeline` with what docs/rollout.md advises for a fast learner (fast_learner.py)."""
MODES = (SYNC_ROLLOUT, "sync", "one_step", "pipeline_drain", "pipeline", ADVISED)
DEFAULT_S = Pipeline(mode="pipeline").requested_staleness
OTHER_S = (2, 8)
"""Beside the default: with a fast learner the longest group spans many steps, and the gate waits for it."""
FAST_LEARNER = 0.25
"""T/R of the comparison with `one_step`."""


def bound_s(w: Workload, learner_s: float) -> float:
    return max(w.prompts / w.saturated_groups_per_s, learner_s)


def plans(w: Workload, rollout_s: float, ratio: float, args: argparse.Namespace) -> Iterable[Plan]:
    """One R:T point. Modes whose steps share nothing need fewer of them."""
    learner_s = ratio * rollout_s
    size = w.prompts * w.samples_per_prompt / 2048
    scale = args.time_scale or max(
        w.time_scale, size * STEP_WALL_S / bound_s(w, learner_s), size * ROLLOUT_WALL_S / rollout_s
    )

    def plan(mode: str, steps: int, warmup: int, staleness: int | None = None) -> Plan:
        return Plan(mode, learner_s, scale, steps, warmup, w.acceptance, staleness)

    few, all_ = max(2, args.steps // 3), args.steps
    if ratio == 1.0:
        yield plan(SYNC_ROLLOUT, few, 1)
    yield plan("sync", few + 1, 1)
    yield plan("one_step", max(3, all_ * 2 // 3), 2)
    yield plan("pipeline_drain", all_, 2)
    yield plan("pipeline", all_, 2)
    if ratio < 1:
        for staleness in OTHER_S:
            yield plan("pipeline", all_, 2, staleness)
        yield advised(w, learner_s, scale, all_)


def advised(w: Workload, learner_s: float, scale: float, steps: int) -> Plan:
    return replace(plan_of(w, learner_s, FAST_WAY, steps), scale=scale)


async def rollout_seconds(c: Cluster, args: argparse.Namespace) -> float:
    """Emulated seconds from the dispatch of one batch to its last group, with nothing else under way."""
    alone = await run(
        c, Plan("sync", 0.0, args.time_scale or STEP_WALL_S / 100, 2 if args.quick else 5, 1, c.workload.acceptance)
    )
    return alone.split["replay_wait"]


async def measure(c: Cluster, args: argparse.Namespace) -> dict:
    w = c.workload
    rollout_s = args.rollout_s or await rollout_seconds(c, args)
    print(
        f"R = {rollout_s:.1f} emulated s, saturated engines {bound_s(w, 0):.1f} s per batch of {w.prompts} x"
        f" {w.samples_per_prompt}",
        flush=True,
    )
    results: dict[tuple[float, str], list[ModeFigures]] = defaultdict(list)
    if args.json:
        write_runs(args.json, results)  # those of an earlier benchmark are not taken for this one's
    chosen: dict[tuple[float, str], Plan] = {}
    for _ in range(args.repeats):
        for ratio in args.ratios:
            for plan in plans(w, rollout_s, ratio, args):
                if (plan.mode if plan.fast_lane == "off" else ADVISED) not in args.modes:
                    continue
                f = await run(c, plan)
                results[ratio, plan.name].append(f)
                chosen[ratio, plan.name] = plan
                if args.json:
                    write_runs(args.json, results)
                print(
                    f"T/R {ratio:g} {plan.name}: {f.step_s:.1f} s/step, machine {100 * f.machine_busy:.0f} %,"
                    f" {say(f.split)}",
                    flush=True,
                )
    # In a thread: the simulation has an event loop of its own.
    predicted = {key: await asyncio.to_thread(predict, w, plan) for key, plan in chosen.items()}
    table = lines(results, predicted)
    print(text(table))
    if args.markdown:
        args.markdown.write_text(markdown(table) + "\n")
    if args.plot:
        plot(table, {r: bound_s(w, r * rollout_s) for r in args.ratios}, args.plot)
    facts = summary(w, results, rollout_s) | {
        "predicted_over_measured": {
            f"{r:g} {n}": round(p / median_of(results[r, n]).step_s, 3) for (r, n), p in predicted.items()
        }
    }
    if args.late is not None:
        facts |= await late_training(c, args.late or PARTS, args.late_steps or w.late.steps, args.time_scale)
    elif not args.quick:
        facts |= await asyncio.to_thread(headline, w)
        facts = await asyncio.to_thread(fast_learner_headline) | facts  # what was measured says more
        facts |= await asyncio.to_thread(auto_over_best_fixed, w)
    return facts


def write_runs(path: Path, results: Mapping[tuple[float, str], list[ModeFigures]]) -> None:
    """Write the figures of all runs so far: a benchmark that is interrupted keeps them."""
    runs = {f"{ratio:g} {name}": [f.as_json() for f in figures] for (ratio, name), figures in results.items()}
    path.write_text(json.dumps(runs, indent=1))


def say(split: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {seconds:.1f}" for name, seconds in split.items())


def summary(w: Workload, results: dict[tuple[float, str], list[ModeFigures]], rollout_s: float) -> dict:
    """The bars of this benchmark; one that needs a point which was not run is left out."""

    def rate(ratio: float, name: str) -> float:
        return median_of(results[ratio, name]).trained_tokens_per_s

    facts: dict = {"rollout_s": round(rollout_s, 1)}
    pipelines = [f for (_, name), fs in results.items() if name.startswith("pipeline") for f in fs]
    if (1.0, "pipeline") in results:
        best = rate(1.0, "pipeline")
        for name, mode in (("sync_rollout", SYNC_ROLLOUT), ("async_rollout", "sync")):
            if (1.0, mode) in results:
                facts[f"speedup_vs_{name}"] = round(best / rate(1.0, mode), 2)
        facts["efficiency_vs_bound"] = round(bound_s(w, rollout_s) / median_of(results[1.0, "pipeline"]).step_s, 3)
        facts["controller_cpu_s_per_step"] = round(median_of(results[1.0, "pipeline"]).controller_cpu_s_per_step, 3)
    if (FAST_LEARNER, "one_step") in results:
        facts |= fast_learner(w, results, "wall")
    facts["stale_discarded"] = sum(f.discarded_groups for f in pipelines)
    facts["max_staleness_seen"] = {
        name: max(f.staleness_max for (_, n), fs in results.items() if n == name for f in fs) for _, name in results
    }
    return facts


def fast_learner(w: Workload, results: dict[tuple[float, str], list[ModeFigures]], clock: str) -> dict:
    """`pipeline` over `one_step`, by S (staleness_bound.py has the arithmetic of what S allows)."""
    base = median_of(results[FAST_LEARNER, "one_step"]).trained_tokens_per_s
    speedups = {
        name: round(median_of(fs).trained_tokens_per_s / base, 2)
        for (ratio, name), fs in results.items()
        if ratio == FAST_LEARNER and name.startswith("pipeline") and name != "pipeline_drain"
    }
    names = {DEFAULT_S: "pipeline"} | {s: f"pipeline S={s}" for s in OTHER_S}
    facts: dict = {}
    if "pipeline" in speedups:
        facts["speedup_vs_one_step_fast_learner"] = speedups["pipeline"]
        facts["speedup_vs_one_step_fast_learner_by_S"] = {
            s: speedups[n] for s, n in sorted(names.items()) if n in speedups
        }
    if (name := advised(w, 0.0, 1.0, 4).name) in speedups:
        facts["speedup_vs_one_step_fast_learner_s4"] = speedups[name]
        facts["speedup_vs_one_step_fast_learner_s4_clock"] = clock
    return facts


def main() -> None:
    parser = command_parser(__doc__)
    add = parser.add_argument
    add(
        "--quick",
        action="store_true",
        help="a smoke test: 16 x 8 on 2 engines, one R:T, few steps; its ratios say nothing",
    )
    add("--workload", type=Path, default=SEED_FILE, metavar="TOML", help="another workload")
    add(
        "--ratios",
        type=float,
        nargs="+",
        default=RATIOS,
        metavar="T/R",
        help="learner over rollout seconds (default: %(default)s)",
    )
    add("--modes", nargs="+", default=MODES, choices=MODES, metavar="MODE", help="(default: %(default)s)")
    add(
        "--rollout-s",
        type=float,
        metavar="R",
        help="emulated seconds of a batch's rollout, measured before (default: measured now)",
    )
    add("--repeats", type=int, default=1, help="of everything, interleaved (default: %(default)s)")
    add("--steps", type=int, help="per run, the first two uncounted (default: the workload's)")
    add(
        "--time-scale",
        type=float,
        help="wall-clock seconds of an emulated second (default: as fast as two cores carry, by R:T)",
    )
    add(
        "--late",
        nargs="*",
        choices=PARTS,
        metavar="PART",
        help="late training by the wall clock, hours, or a part: auto, advised, jump, fixed; else simulated",
    )
    add("--late-steps", type=int, help="steps of it (default: the workload's)")
    add("--env-processes", type=int, default=2, help="of the environment server (default: %(default)s)")
    add("--markdown", type=output_file, metavar="PATH", help="write the table there")
    add("--plot", type=output_file, metavar="PATH", help="write the picture there")
    add("--json", type=output_file, metavar="PATH", help="write every run's figures there")
    args = parser.parse_args()
    w = Workload.read(args.workload)
    if args.quick:
        w, args.ratios = w.with_batch(16, 8, engines=2), [1.0]
        args.time_scale = args.time_scale or 0.02
    args.steps = args.steps or (6 if args.quick else w.steps)
    if args.steps < 4:
        parser.error(f"--steps {args.steps} leaves nothing to count after two warm-up steps. Use at least 4.")
    with cluster(w, args.env_processes) as c:
        facts = asyncio.run(measure(c, args))
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
