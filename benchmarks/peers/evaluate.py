"""Evaluate: the weights that a system kept -> held-out accuracy at temperature 1, by one evaluator for all, after the
training and outside its clock.

In order of updates until one reaches the bar, then the last: what is asked is when the bar was reached, and where
training ended. Weights from before the first batch that comes near the bar are left out.

python -m benchmarks.peers.evaluate WORK.json SAMPLES
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from openrlhf_tir.miniatures.toy.tokenizer import encode
from openrlhf_tir.miniatures.toy.traces import prompt_of

from .reward import correct
from .rollout import sample
from .sandbox import Client, sandbox
from .work import ACCURACY, BAR, Step, Work, kept, steps_of

NEAR = 0.15
"""A batch is near the bar when its reward is at most so much below: four standard errors of 128 samples at .75."""
SEED, BATCH = 1, 256


def accuracy(weights: Path, work: Work, tools: Client, samples: int) -> float:
    """Share of `samples` responses to each held-out problem that are correct. Standard error 1.1 points at .85 with 4
    to each of 256 problems."""
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32, attn_implementation="eager").eval()
    rows = [row for row in work.rows("test") for _ in range(samples)]
    right = 0.0
    for first in range(0, len(rows), BATCH):
        part = rows[first : first + BATCH]
        prompts = [encode(prompt_of(row["prompt"])) for row in part]
        made = sample(
            model, prompts, budget=work.max_new_tokens, calls=work.calls, run=tools.run, spent=lambda phase, since: None
        )
        right += sum(correct(s.text, s.ended, row["label"]) for s, row in zip(made, part, strict=True))
    return right / len(rows)


def first_near(steps: Sequence[Step]) -> int:
    """The first update whose batch came near the bar; one after the last where none did."""
    return next((s.step for s in steps if s.reward >= BAR - NEAR), len(steps) + 1)


def evaluate(work: Work, samples: int) -> dict[int, float]:
    torch.set_num_threads(work.threads)
    out = Path(work.out)
    found: dict[int, float] = {}
    weights, first = kept(out), first_near(steps_of(out))
    with sandbox(work.env_python, out) as tools:
        for step, path in weights.items():
            reached = max(found.values(), default=0.0) >= BAR
            if step != max(weights) and (reached or step < first):
                continue
            found[step] = round(accuracy(path, work, tools, samples), 4)
            print(f"after {step} updates: {found[step]:.3f}", flush=True)
            (out / ACCURACY).write_text(json.dumps(found))
    return found


if __name__ == "__main__":
    evaluate(Work.read(sys.argv[1]), int(sys.argv[2]))
