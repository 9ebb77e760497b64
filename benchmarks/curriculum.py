"""python -m benchmarks.curriculum: what a group that is trained costs late in a run, with prompts as they come and with
data.curriculum = "difficulty", on the real stack.

    one base model -> the quickstart's RL twice, on the same few problems seen many times, until most are always solved

Reported of the last third of the updates are the groups that were rolled for each that was trained, and of the last
evaluation the held-out accuracy: rollouts are saved, and nothing is to be lost. `--base RUN_DIR` of an earlier
quickstart (its seed) saves making a base model; a run that is finished under `--out` is read again and not repeated.
The last line is one JSON object."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from openrlhf_tir.logs import metrics
from openrlhf_tir.logs.jsonl import read_rows
from openrlhf_tir.report.summary import FILE as FINISHED

from .quickstart_runs import base_of, seed_of, train_from

WAYS: dict[str, tuple[str, ...]] = {"uniform": (), "difficulty": ("--data.curriculum", "difficulty")}
PASSES = 1000
"""More than a run needs: it ends by its updates."""


def groups(rows: Iterable[Mapping[str, Any]], stage: str) -> float:
    """Groups that came to a stage ("rolled", "trained"; pipeline/bias_meter.py) in the steps of these rows."""
    return sum(
        value
        for row in rows
        for name, value in row.items()
        if name.startswith("selection/difficulty/") and name.endswith(f"/{stage}")
    )


def cost_of(rows: Sequence[Mapping[str, Any]], updates: int) -> float:
    """Groups rolled for each trained one in the last third of so many updates."""
    late = [row for row in rows if row["step"] > updates - updates // 3]
    return groups(late, "rolled") / groups(late, "trained")


def accuracy_of(rows: Sequence[Mapping[str, Any]]) -> float:
    """Held out, of the last evaluation."""
    return [row["eval/accuracy"] for row in rows if "eval/accuracy" in row][-1]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.curriculum",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--base", type=Path, help="run directory of a quickstart, or of `openrlhf-tir toy-model`")
    add("--out", type=Path, default=Path("runs/curriculum"), help="(default: %(default)s)")
    add("--seed", type=int, default=42, help="without --base (default: %(default)s)")
    add("--prompts", type=int, default=240, help="training problems (default: %(default)s)")
    add("--updates", type=int, default=48, help="(default: %(default)s)")
    args = parser.parse_args()
    seed = seed_of(args.base) if args.base else args.seed
    base = base_of(seed, {seed: args.base} if args.base else {}, args.out)
    flags: tuple[str, ...] = ("--data.max_samples", str(args.prompts), "--train.num_episodes", str(PASSES))
    flags += ("--train.max_steps", str(args.updates), "--eval.steps", str(args.updates))
    out: dict[str, Any] = {"seed": seed, "prompts": args.prompts, "updates": args.updates}
    for name, curriculum in WAYS.items():
        run_dir = args.out / f"{name}-{seed}"
        if not (run_dir / FINISHED).exists():
            print(f"{name}: trains, log: {run_dir / 'benchmark.log'}", flush=True)
            train_from(base, run_dir, seed, *flags, *curriculum)
        rows = read_rows(run_dir / metrics.FILE)
        cost, accuracy = cost_of(rows, args.updates), accuracy_of(rows)
        out |= {f"rolled_per_trained_{name}": round(cost, 3), f"accuracy_{name}": round(accuracy, 4)}
        print(f"{name}: {cost:.2f} groups rolled for each trained one, held-out accuracy {100 * accuracy:.1f} %")
    out["fewer"] = round(out["rolled_per_trained_uniform"] / out["rolled_per_trained_difficulty"], 3)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
