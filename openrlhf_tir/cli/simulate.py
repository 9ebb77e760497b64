"""The `simulate` command: throughput, idle shares and staleness of a workload and configuration, on a virtual clock.

With --gpus it looks for the best split between rollout and training.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.flags import add_config_flags, overrides_of
from ..config.numbers import real, whole
from ..config.paths import check_new_file
from ..errors import ConfigError
from ..simulation.workload import SEED_WORKLOAD

if TYPE_CHECKING:
    from ..config import Config
    from ..simulation.workload import Workload

MODES = ("sync", "one_step", "pipeline_drain", "pipeline")
"""What is compared if no --pipeline option says otherwise."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    group = parser.add_argument_group("simulation")
    add = group.add_argument
    add(
        "--workload",
        type=Path,
        default=SEED_WORKLOAD,
        metavar="FILE",
        help="lengths, latencies, engines, learner and [[faults]] [openrlhf_tir/simulation/workload_seed.toml]",
    )
    add(
        "--scenario",
        choices=("main", "late", "jump"),
        default="main",
        help="acceptance: constant, falling, or jumping at half time, as the workload says [main]",
    )
    add("--learner-seconds", type=real(), metavar="S", help="seconds of a learner step [the workload's]")
    add(
        "--gpus",
        type=whole(at_least=2),
        metavar="N",
        help="plan: split N GPUs between rollout and training, and choose S",
    )
    add("--gpus-per-engine", type=whole(at_least=1), default=1, metavar="N", help="of one engine, when planning [1]")
    learner_gpus = "GPUs on which a learner step takes what the workload says, when planning [as many as its engines]"
    add("--learner-gpus", type=whole(at_least=1), metavar="N", help=learner_gpus)
    add("--plot", type=Path, metavar="FILE", help="write a PNG of the (last) simulated run")
    add("--json", action="store_true", help="print one JSON object instead of tables")
    add_config_flags(parser, first=())


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from dataclasses import replace

    from ..simulation.faults import read_faults
    from ..simulation.run import learner_seconds, simulate
    from ..simulation.workload import Workload

    if args.gpus and args.plot:
        raise ConfigError("--plot draws one simulated run, and --gpus simulates many. Leave one of them out.")
    check_new_file(args.plot, "--plot")
    read = Workload.read(args.workload)
    cfg, workload = sized(args, read)
    scenario = {"main": workload.acceptance, "late": workload.late, "jump": workload.jump}[args.scenario]
    learner_s = args.learner_seconds or learner_seconds(workload)
    if args.gpus:
        return _plan(args, workload, learner_s, cfg.updates_per_batch)
    results = {}
    for name, changes in compared(args).items():
        config = cfg
        if changes:
            pipeline = cfg.pipeline.model_validate({**cfg.pipeline.model_dump(), **changes})
            config = cfg.model_copy(update={"pipeline": pipeline})
        results[name] = simulate(
            workload,
            config,
            acceptance=replace(scenario, steps=cfg.train.max_steps),
            learner_s=learner_s,
            faults=read_faults(args.workload),
        )
    if args.plot:
        name, last = list(results.items())[-1]
        _plot(args.plot, last, name, workload)
    _show(args, workload, results, learner_s)
    return 0


def sized(args: argparse.Namespace, workload: Workload) -> tuple[Config, Workload]:
    """Return configuration and workload. Recipe or flags say how large the run is; otherwise the workload does."""
    from dataclasses import replace

    from ..config.settings import load

    overrides = overrides_of(args)
    workload_size = {
        "rollout.batch_size": workload.prompts,
        "rollout.n_samples_per_prompt": workload.samples_per_prompt,
        "vllm.num_engines": workload.engine.count,
        "train.max_steps": workload.late.steps if args.scenario != "main" else workload.steps,
    }
    cfg = load(
        args.recipe, {**({} if args.recipe else workload_size), **overrides, "ckpt.save_steps": -1, "eval.steps": -1}
    )
    seed = cfg.train.seed if "train.seed" in overrides else workload.seed
    engine = replace(workload.engine, count=cfg.vllm.num_engines)
    rollout = cfg.rollout
    return cfg, replace(
        workload,
        engine=engine,
        seed=seed,
        prompts=rollout.batch_size,
        samples_per_prompt=rollout.n_samples_per_prompt,
        steps=cfg.train.max_steps,
    )


def compared(args: argparse.Namespace) -> dict[str, dict]:
    """Return the configurations to compare: name -> changes of the [pipeline] section."""
    changes = {
        name.removeprefix("pipeline."): value
        for name, value in overrides_of(args).items()
        if name.startswith("pipeline.")
    }
    if not changes and not args.recipe:
        return {mode: {"mode": mode} for mode in MODES}
    return {", ".join(f"{name} {value}" for name, value in changes.items()) or args.recipe: {}}


def _show(args: argparse.Namespace, workload: Workload, results: dict, learner_s: float) -> None:
    import json

    from rich.console import Console

    from ..simulation.table import table

    if args.json:
        print(json.dumps({name: figures(r) for name, r in results.items()}))
        return
    console = Console()
    console.print(table(results))
    first = next(iter(results.values()))
    console.print(
        f"{first.steps} steps of {workload.prompts} x {workload.samples_per_prompt} on {workload.engine.count} engines,"
        f" learner {learner_s:.1f} s a step; simulated in {sum(r.wall_s for r in results.values()):.1f} s",
        highlight=False,
    )


def figures(result) -> dict[str, float]:
    """Return the figures of a simulation that scripts want."""
    return {
        "step_s": result.step_s,
        "bound_s": result.bound_s,
        "efficiency": result.efficiency,
        "trained_tokens_per_s": result.trained_tokens / result.seconds,
        "engine_idle": result.engine_idle,
        "engine_use": result.engine_use,
        "learner_idle": result.learner_idle,
        "gate_wait_s_per_step": result.phases_s["wait for gate"] / result.steps,
        "surplus_share": result.surplus_share,
        "staleness_mean": result.staleness_mean,
        "staleness_max": result.staleness_max,
        "staleness": result.staleness,
        "wall_s": result.wall_s,
    }


def _plot(path: Path, result, name: str, workload: Workload) -> None:
    from ..observability.report.style import png
    from ..simulation.plot import plot

    saturated = workload.engine.saturated_tokens_per_s * workload.engine.count
    path.write_bytes(png(plot(result, name, workload.engine.count, saturated)))


def _plan(args: argparse.Namespace, workload: Workload, learner_s: float, updates: int) -> int:
    """Simulate splits of the GPUs and print the recommended one.

    Args:
        args: The parsed arguments.
        workload: The workload.
        learner_s: Seconds of a learner step.
        updates: Updates per batch. Candidates are simulated in batches; the recommendation counts updates.
    """
    import json

    from rich.console import Console

    from ..simulation.planner import STALENESS, plans, recommend, splits
    from ..simulation.table import plan_table

    candidates = splits(
        workload,
        gpus=args.gpus,
        gpus_per_engine=args.gpus_per_engine,
        learner_s=learner_s,
        learner_gpus=args.learner_gpus or workload.engine.count,
    )
    console = Console(stderr=args.json)
    with console.status("simulating") as status:
        planned = []
        for plan in plans(workload, candidates):
            planned.append(plan)
            status.update(f"{len(planned)}/{len(candidates) * len(STALENESS)} plans")
    chosen = recommend(planned)
    settings = {
        "vllm.num_engines": chosen.split.engines,
        "vllm.tensor_parallel_size": args.gpus_per_engine,
        "actor.num_gpus_per_node": chosen.split.learner_gpus,
        "pipeline.mode": "pipeline",
        "pipeline.max_staleness": (chosen.staleness + 1) * updates - 1,
        "pipeline.depth": "auto",
    }
    if args.json:
        print(json.dumps(settings | figures(chosen.result)))
        return 0
    console.print(plan_table(planned, chosen))
    console.print(
        "recommended: " + " ".join(f"--{name} {value}" for name, value in settings.items()),
        highlight=False,
        soft_wrap=True,
    )
    return 0
