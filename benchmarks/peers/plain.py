"""plain: a reference, the same recipe in one process: Hugging Face's generate, REINFORCE++-baseline, AdamW. No engine,
no sharding, no overlap, no checks. A model in bf16 has float32 master weights.

python -m benchmarks.peers.plain WORK.json
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from random import Random

import torch
from transformers import PreTrainedModel

from .rollout import Sample
from .sandbox import sandbox
from .tasks import task_of
from .work import Recorder, Work, mean, with_variance


def advantages(rewards: torch.Tensor, samples: int, lengths: torch.Tensor) -> torch.Tensor:
    """[B] reward minus the mean of its group, then whitened over the batch's trained tokens, lengths [B] each."""
    groups = rewards.view(-1, samples)
    centred = (groups - groups.mean(dim=1, keepdim=True)).view(-1)
    total = lengths.sum()
    middle = (centred * lengths).sum() / total
    return (centred - middle) / (((centred - middle) ** 2 * lengths).sum() / total).sqrt().clamp_min(1e-8)


def loss_of(
    model: PreTrainedModel, rows: list[Sample], advantage_B: torch.Tensor, pad_id: int, temperature: float
) -> torch.Tensor:
    """Sum over the rows' own tokens of -A times the policy ratio, which is 1 in the only update of a batch: there
    clipping never acts."""
    lengths = [len(s.prompt_ids) + len(s.ids) for s in rows]
    width = max(lengths)
    fill = [width - length for length in lengths]
    ids = torch.tensor([s.prompt_ids + s.ids + [pad_id] * n for s, n in zip(rows, fill, strict=True)])
    mine = torch.tensor([[0] * len(s.prompt_ids) + s.mine + [0] * n for s, n in zip(rows, fill, strict=True)])
    there = torch.tensor([[1] * length + [0] * n for length, n in zip(lengths, fill, strict=True)])
    logits = model(input_ids=ids, attention_mask=there, use_cache=False).logits[:, :-1].float() / temperature
    logprobs = torch.log_softmax(logits, dim=-1).gather(2, ids[:, 1:, None])[..., 0]
    ratio = (logprobs - logprobs.detach()).exp()
    return -(ratio * advantage_B[:, None] * mine[:, 1:]).sum()


class Masters:
    """Float32 copies of a model's weights for the optimizer; of a float32 model the weights themselves."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.weights = list(model.parameters())
        self.copies = [w if w.dtype == torch.float32 else w.detach().float().requires_grad_() for w in self.weights]

    def take_gradients(self) -> None:
        for copy, weight in zip(self.copies, self.weights, strict=True):
            if copy is not weight and weight.grad is not None:
                copy.grad, weight.grad = weight.grad.float(), None

    @torch.no_grad()
    def give_weights(self) -> None:
        for copy, weight in zip(self.copies, self.weights, strict=True):
            if copy is not weight:
                weight.copy_(copy)


def train(work: Work) -> None:
    torch.set_num_threads(work.threads)
    torch.manual_seed(work.seed)
    task = task_of(work)
    model = task.load(torch.bfloat16)
    masters = Masters(model)
    optimizer = torch.optim.AdamW(masters.copies, lr=work.lr, betas=work.betas, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, work.lr_factor)
    rows = work.rows("train")
    Random(work.seed).shuffle(rows)
    with sandbox(work.env_python, Path(work.out), work.env_workers) as tools:
        recorder = Recorder(Path(work.out))
        for step in range(1, work.steps + 1):
            batch = [row for row in rows[(step - 1) * work.prompts : step * work.prompts] for _ in range(work.samples)]
            model.eval()
            made = task.roll(model, batch, tools, recorder.spent)
            rewards = [s.reward for s in made]
            since = time.monotonic()
            lengths = torch.tensor([sum(s.mine) for s in made])
            advantage_B = advantages(torch.tensor(rewards), work.samples, lengths)
            model.train()
            for first in range(0, len(made), work.micro_batch):
                part = slice(first, first + work.micro_batch)
                loss = loss_of(model, made[part], advantage_B[part], task.pad_id, work.temperature)
                (loss / lengths.sum()).backward()
            masters.take_gradients()
            torch.nn.utils.clip_grad_norm_(masters.copies, work.max_norm)
            optimizer.step()
            optimizer.zero_grad()
            masters.give_weights()
            schedule.step()
            recorder.spent("update", since)
            tokens = int(lengths.sum())
            varied = with_variance(rewards, work.samples)
            recorder.done(step, tokens, tokens, mean(rewards), len(rewards), varied)
            print(f"step {step}: reward {mean(rewards):.3f}", flush=True)
            if directory := work.due(step):
                task.save(model, directory)


if __name__ == "__main__":
    train(Work.read(sys.argv[1]))
