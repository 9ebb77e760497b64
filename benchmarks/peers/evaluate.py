"""Evaluate: the weights that a system kept -> held-out accuracy at temperature 1, by one evaluator for all, after the training and outside its clock.

In order of updates until one reaches the bar, then the last: what is asked is when the bar was reached, and where training ended.

python -m benchmarks.peers.evaluate WORK.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from openrlhf_tir.toy.tokenizer import encode
from openrlhf_tir.toy.traces import prompt_of

from .reward import correct
from .rollout import sample
from .sandbox import Client, sandbox
from .work import ACCURACY, BAR, Work, kept

SAMPLES, SEED, BATCH = 4, 1, 256


def accuracy(weights: Path, work: Work, tools: Client) -> float:
    """Share of SAMPLES responses to each held-out problem that are correct. Standard error 1.1 points at .85 and 256 problems."""
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32, attn_implementation="eager").eval()
    rows = [row for row in work.rows("test") for _ in range(SAMPLES)]
    right = 0.0
    for first in range(0, len(rows), BATCH):
        part = rows[first : first + BATCH]
        prompts = [encode(prompt_of(row["prompt"])) for row in part]
        made = sample(model, prompts, budget=work.max_new_tokens, calls=work.calls, run=tools.run, spent=lambda phase, since: None)
        right += sum(correct(s.text, s.ended, row["label"]) for s, row in zip(made, part, strict=True))
    return right / len(rows)


def evaluate(work: Work) -> dict[int, float]:
    torch.set_num_threads(work.threads)
    out, found = Path(work.out), {}
    weights = kept(out)
    with sandbox(work.env_python, out) as tools:
        for step, path in weights.items():
            if step != max(weights) and max(found.values(), default=0.0) >= BAR:
                continue
            found[step] = round(accuracy(path, work, tools), 4)
            print(f"after {step} updates: {found[step]:.3f}", flush=True)
            (out / ACCURACY).write_text(json.dumps(found))
    return found


if __name__ == "__main__":
    evaluate(Work.read(sys.argv[1]))
