"""The table of `openrlhf-tir size --cards`: what fits on how many cards, a step's times, and what limits it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..config.numbers import whole
from ..errors import ConfigError
from ..machine.sizes import size
from ..memory.shapes import SHAPES
from ..simulation.scale import BANDWIDTH, ScalePlan, as_dict, plan_scale, simulate_plan

MODELS = ["0.5b", "1.5b", "3b", "7b", "14b", "32b"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the table to `parser`."""
    group = parser.add_argument_group("what fits on how many cards")
    group.add_argument(
        "--cards",
        nargs="+",
        type=whole(at_least=1),
        metavar="N",
        help="for each number of cards: the layout that fits whose step is shortest, and what limits it first",
    )
    group.add_argument(
        "--models", nargs="+", default=MODELS, choices=list(SHAPES), help=f"with --cards [{' '.join(MODELS)}]"
    )
    group.add_argument(
        "--push", choices=("file", "nccl"), default="file", help="with --cards: vllm.sync_backend [%(default)s]"
    )
    group.add_argument("--simulate", action="store_true", help="with --cards: run each layout in the simulator")
    group.add_argument("--json", action="store_true", help="with --cards: print JSON lines in place of the table")


def show(args: argparse.Namespace) -> None:
    """Print one row for each model and number of cards.

    Raises:
        ConfigError: The card is none whose memory bandwidth is known.
    """
    gpu_gib = int(args.gpu_gib)
    if gpu_gib not in BANDWIDTH:
        known = ", ".join(map(str, BANDWIDTH))
        raise ConfigError(
            f"--gpu-gib {args.gpu_gib:g} with --cards: constants are known for cards of {known} GiB. Use one."
        )
    rows: list[tuple[str, int, ScalePlan | None]] = []
    for model in args.models:
        for number in args.cards:
            plan = plan_scale(model, SHAPES[model], number, gpu_gib=gpu_gib, push=args.push)
            if plan is not None and args.simulate:
                plan = simulate_plan(plan, SHAPES[model], gpu_gib=gpu_gib)
            rows.append((model, number, plan))
    if args.json:
        for model, number, plan in rows:
            print(
                json.dumps(
                    {"model": model, "cards": number, "fits": plan is not None} | (as_dict(plan) if plan else {})
                )
            )
        return
    _print(rows, args)


def _print(rows: list[tuple[str, int, ScalePlan | None]], args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    heads = [
        "model",
        "cards",
        "learner",
        "engines",
        "prompts",
        "learner s",
        "gather s",
        "rollout s",
        "push s",
        "step s",
    ]
    heads += ["a push", "object store", "env calls at once", "first limit"]
    heads += ["simulated step s", "engines, learner idle", "staleness"] if args.simulate else []
    table = Table(*heads, title=f"cards of {args.gpu_gib:g} GiB, pushes by {args.push}")
    for model, number, plan in rows:
        table.add_row(model, str(number), *(_cells(plan) if plan else ["does not fit"]))
    Console(width=max(200, Console().width)).print(table)


def _cells(plan: ScalePlan) -> list[Any]:
    layout = plan.layout
    learner = f"{layout.learner_cards}{', adam_offload' * layout.offload}"
    engines = f"{layout.engines} x {layout.tensor_parallel}"
    if layout.shared:
        engines += f" ({layout.shared})"
    times = (plan.learner_s, plan.gather_s, plan.rollout_s, plan.push_s, plan.step_s)
    cells = [learner, engines, str(plan.prompts), *(f"{seconds:.1f}" for seconds in times)]
    cells += [size(plan.push_bytes), size(plan.store_bytes), f"{plan.env_at_once:.0f}", plan.first_limit]
    if plan.simulated:
        result = plan.simulated
        idle = f"{result['engine_idle']:.0%}, {result['learner_idle']:.0%}"
        cells += [f"{result['step_s']:.1f}", idle, f"{result['staleness_mean']:.2f}"]
    return cells
