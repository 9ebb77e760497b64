"""ours: a CPU quickstart's recipe by `openrlhf-tir train`, and its metrics.jsonl and trajectories as the steps that
peers write themselves.

python -m benchmarks.peers.ours WORK.json [FLAG VALUE ...]    more flags of openrlhf-tir train
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from openrlhf_tir.telemetry import trajectories
from openrlhf_tir.telemetry.jsonl import read_rows

from .tasks import RECIPES
from .work import STEPS, Step, Work, begin, saved

OF_THE_BATCH = "selection/env/"
"""Metrics selection/env/NAME/trained are the groups of an update."""
PHASES = {"replay_wait_s": "wait for groups", "gate_wait_s": "gate", "step_s": "update", "push_s": "push"}


def flags(work: Work, run: Path) -> list[str]:
    """What is given beside the recipe: what all are given, weights every `save_every` updates, no evaluation inside."""
    data = Path(work.data)
    return [
        *("--recipe", RECIPES.get(work.model, "quickstart_cpu"), "--run-dir", str(run)),
        *("--actor.model_name_or_path", work.base, "--data.prompt_dataset", str(data / "train.jsonl")),
        *("--train.max_steps", str(work.steps), "--train.seed", str(work.seed)),
        *("--rollout.batch_size", str(work.prompts), "--rollout.n_samples_per_prompt", str(work.samples)),
        *(
            "--rollout.max_new_tokens",
            str(work.max_new_tokens),
            "--env.max_calls",
            str(work.calls),
            "--actor.learning_rate",
            str(work.lr),
        ),
        *("--ckpt.save_steps", str(work.save_every), "--ckpt.save_hf", "true", "--ckpt.max_num", "0"),
        *("--logger.trajectories", "1.0"),
    ]


def steps(metrics: Iterable[Mapping[str, Any]], kept: Iterable[Mapping[str, Any]], group: int) -> list[Step]:
    """Rows of metrics.jsonl and of trajectories/ -> steps; `group`: samples of a group. Groups without variance are
    filtered, so that all samples of an update are of groups with it. The clock starts where the first step's `wall_s`
    does. What was sampled while update k was the newest counts to step k + 1; groups still rolling at the end were
    never handed in and are not counted."""
    rows = updates(metrics)
    sampled: Counter[int] = Counter()
    for t in kept:
        sampled[t["update"] + 1] += sum(run["tokens"] for run in t["runs"] if run["source"] == "model")
    start = began(rows)
    return [
        Step(
            row["step"],
            round(row["time"] - start, 3),
            sampled[row["step"]],
            int(row["trained_tokens"]),
            round(row["reward_mean"], 4),
            {phase: row[name] for name, phase in PHASES.items() if row.get(name)},
            *(trained_samples(row, group),) * 2,
        )
        for row in rows
    ]


def trained_samples(row: Mapping[str, Any], group: int) -> int:
    return group * sum(
        int(groups) for name, groups in row.items() if name.startswith(OF_THE_BATCH) and name.endswith("/trained")
    )


def updates(metrics: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows that are of an update: evaluations have none of these."""
    return [row for row in metrics if row.get("wall_s") is not None]


def began(rows: list[Mapping[str, Any]]) -> float:
    """When the first update's work began, in seconds since the epoch."""
    return rows[0]["time"] - rows[0]["wall_s"] if rows else 0.0


def train(work: Work, more: Sequence[str]) -> int:
    """Its exit code. Told to stop, it lets the run stop by itself, as it was told too, and collects what there is."""
    signal.signal(signal.SIGTERM, lambda *_: None)
    run = Path(work.out) / "run"
    done = subprocess.run(
        [sys.executable, "-m", "openrlhf_tir.cli", "train", *flags(work, run), *more], check=False
    ).returncode
    collect(work, run)
    return done


def collect(work: Work, run: Path) -> None:
    out = Path(work.out)
    metrics = list(read_rows(run / "metrics.jsonl"))
    found = steps(metrics, trajectories.read(run), work.samples)
    begin(out, began(updates(metrics)))
    (out / STEPS).write_text("".join(json.dumps(asdict(step)) + "\n" for step in found))
    exports = {int(p.name.split("_")[1]): p for p in (run / "ckpt").glob("step_*_hf")}
    exports |= {work.steps: run / "model"} if (run / "model" / "config.json").exists() else {}
    for step, path in exports.items():
        if not saved(out, step).exists():
            saved(out, step).symlink_to(path.resolve())


if __name__ == "__main__":
    sys.exit(train(Work.read(sys.argv[1]), sys.argv[2:]))
