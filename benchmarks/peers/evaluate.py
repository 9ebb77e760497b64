"""Evaluate: the weights that a system kept -> held-out accuracy at the temperature of training, by one evaluator for
all, after the training and outside its clock. SmolLM2's is `openrlhf-tir eval`, over the kinds that are trained.

In order of updates until one reaches the bar, then the last: what is asked is when the bar was reached, and where
training ended. Weights from before the first batch that comes near the bar are left out.

python -m benchmarks.peers.evaluate WORK.json SAMPLES
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from miniatures.numbers import TRAINED

from .sandbox import Client, sandbox
from .tasks import RECIPES, ToyTask
from .work import ACCURACY, TOY, Step, Work, kept, steps_of

NEAR = 0.15
"""A batch is near the bar when its reward is at most so much below: four standard errors of 128 samples at .75, three
of 64."""
SEED, BATCH = 1, 256


def accuracy(weights: Path, work: Work, tools: Client, samples: int) -> float:
    """Share of `samples` responses to each held-out problem that are correct. Standard error 1.1 points at .85 with 4
    to each of 256 problems."""
    torch.manual_seed(SEED)
    task = ToyTask(replace(work, base=str(weights)))
    model = task.load(torch.float32).eval()
    rows = [row for row in work.rows("test") for _ in range(samples)]
    right = 0.0
    for first in range(0, len(rows), BATCH):
        made = task.roll(model, rows[first : first + BATCH], tools, lambda phase, since: None)
        right += sum(s.reward for s in made)
    return right / len(rows)


def accuracy_by_command(weights: Path, work: Work, samples: int) -> float:
    """Mean over the trained kinds of the sampled responses that are right, by `openrlhf-tir eval`."""
    out = Path(work.out) / "eval"
    figures = out / f"{weights.name}.json"
    words = [
        sys.executable, "-m", "openrlhf_tir.cli", "eval", "--recipe", RECIPES[work.model], "--model", str(weights),
        "--run-dir", str(out / weights.name), "--eval.dataset", str(Path(work.data) / "test.jsonl"),
        "--eval.n_samples_per_prompt", str(samples), "--out", str(figures),
    ]  # fmt: skip
    out.mkdir(exist_ok=True)
    figures.unlink(missing_ok=True)
    subprocess.run(words, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    by_kind = json.loads(figures.read_text())["sampled"]["by_kind"]
    return sum(by_kind[kind][0] for kind in TRAINED) / len(TRAINED)


@contextmanager
def evaluator(work: Work, samples: int) -> Iterator[Callable[[Path], float]]:
    """Weights -> their accuracy."""
    if work.model != TOY:
        yield lambda weights: accuracy_by_command(weights, work, samples)
        return
    with sandbox(work.env_python, Path(work.out), work.env_workers) as tools:
        yield lambda weights: accuracy(weights, work, tools, samples)


def first_near(steps: Sequence[Step], bar: float) -> int:
    """The first update whose batch came near the bar; one after the last where none did."""
    return next((s.step for s in steps if s.reward >= bar - NEAR), len(steps) + 1)


def evaluate(work: Work, samples: int) -> dict[int, float]:
    torch.set_num_threads(work.threads)
    out = Path(work.out)
    found: dict[int, float] = {}
    weights, first = kept(out), first_near(steps_of(out), work.bar)
    with evaluator(work, samples) as accuracy_of:
        for step, path in weights.items():
            reached = max(found.values(), default=0.0) >= work.bar
            if step != max(weights) and (reached or step < first):
                continue
            found[step] = round(accuracy_of(path), 4)
            print(f"after {step} updates: {found[step]:.3f}", flush=True)
            (out / ACCURACY).write_text(json.dumps(found))
    return found


if __name__ == "__main__":
    evaluate(Work.read(sys.argv[1]), int(sys.argv[2]))
