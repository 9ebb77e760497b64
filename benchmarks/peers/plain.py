"""plain: a reference, the same recipe in one process: Hugging Face's generate, REINFORCE++-baseline, AdamW. No engine,
no sharding, no overlap, no checks.

python -m benchmarks.peers.plain WORK.json
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from random import Random

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from openrlhf_tir.miniatures.toy.tokenizer import PAD_ID, encode
from openrlhf_tir.miniatures.toy.traces import prompt_of

from .reward import correct
from .rollout import Sample, sample
from .sandbox import sandbox
from .work import Recorder, Work, mean


def advantages(rewards: torch.Tensor, samples: int, lengths: torch.Tensor) -> torch.Tensor:
    """[B] reward minus the mean of its group, then whitened over the batch's trained tokens, lengths [B] each."""
    groups = rewards.view(-1, samples)
    centred = (groups - groups.mean(dim=1, keepdim=True)).view(-1)
    total = lengths.sum()
    middle = (centred * lengths).sum() / total
    return (centred - middle) / (((centred - middle) ** 2 * lengths).sum() / total).sqrt().clamp_min(1e-8)


def loss_of(model: PreTrainedModel, rows: list[Sample], advantage_B: torch.Tensor) -> torch.Tensor:
    """Sum over the rows' own tokens of -A times the policy ratio, which is 1 in the only update of a batch: there
    clipping never acts."""
    width = max(len(s.prompt_ids) + len(s.ids) for s in rows)
    ids = torch.tensor([s.prompt_ids + s.ids + [PAD_ID] * (width - len(s.prompt_ids) - len(s.ids)) for s in rows])
    mine = torch.tensor(
        [[0] * len(s.prompt_ids) + s.mine + [0] * (width - len(s.prompt_ids) - len(s.ids)) for s in rows]
    )
    logits = model(input_ids=ids, attention_mask=(ids != PAD_ID).long(), use_cache=False).logits[:, :-1]
    logprobs = torch.log_softmax(logits, dim=-1).gather(2, ids[:, 1:, None])[..., 0]
    ratio = (logprobs - logprobs.detach()).exp()
    return -(ratio * advantage_B[:, None] * mine[:, 1:]).sum()


def train(work: Work) -> None:
    torch.set_num_threads(work.threads)
    torch.manual_seed(work.seed)
    model = AutoModelForCausalLM.from_pretrained(work.base, dtype=torch.float32, attn_implementation="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=work.lr, betas=work.betas, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, work.lr_factor)
    rows = work.rows("train")
    Random(work.seed).shuffle(rows)
    with sandbox(work.env_python, Path(work.out)) as tools:
        recorder = Recorder(Path(work.out))
        for step in range(1, work.steps + 1):
            batch = [row for row in rows[(step - 1) * work.prompts : step * work.prompts] for _ in range(work.samples)]
            model.eval()
            prompts = [encode(prompt_of(row["prompt"])) for row in batch]
            made = sample(
                model, prompts, budget=work.max_new_tokens, calls=work.calls, run=tools.run, spent=recorder.spent
            )
            rewards = [correct(s.text, s.ended, row["label"]) for s, row in zip(made, batch, strict=True)]
            since = time.monotonic()
            lengths = torch.tensor([sum(s.mine) for s in made])
            advantage_B = advantages(torch.tensor(rewards), work.samples, lengths)
            model.train()
            for first in range(0, len(made), work.micro_batch):
                part = slice(first, first + work.micro_batch)
                (loss_of(model, made[part], advantage_B[part]) / lengths.sum()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), work.max_norm)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            recorder.spent("update", since)
            tokens = int(lengths.sum())
            recorder.done(step, tokens, tokens, mean(rewards))
            print(f"step {step}: reward {mean(rewards):.3f}", flush=True)
            if directory := work.due(step):
                model.save_pretrained(directory)


if __name__ == "__main__":
    train(Work.read(sys.argv[1]))
