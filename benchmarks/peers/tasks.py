"""Tasks: what a peer in one process learns -> its model, the text of a prompt, and rollouts with rewards.

toy       characters, ZeroTIR's turns, float32                       rollout.py, reward.py
smollm2   SmolLM2-135M-Instruct answers questions about numbers      chat_rollout.py, by its recipe
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from miniatures.toy.tokenizer import PAD_ID, encode
from miniatures.toy.traces import prompt_of

from .reward import correct
from .rollout import Sample, sample
from .sandbox import Client
from .work import SMOLLM2, Work

Row = dict[str, Any]
RECIPES = {SMOLLM2: "smollm2_cpu"}
"""Model -> the recipe that peers follow."""


class PeersTask(Protocol):
    """Implemented by ToyTask and NumbersTask."""

    pad_id: int

    def load(self, dtype: torch.dtype) -> PreTrainedModel:
        """The base model. The toy's is always float32."""

    def prompt(self, row: Row) -> str:
        """What the model reads."""

    def roll(
        self, model: PreTrainedModel, rows: Sequence[Row], tools: Client, spent: Callable[[str, float], None]
    ) -> list[Sample]:
        """One response to each row, with its reward."""

    def save(self, model: PreTrainedModel, directory: Path) -> None:
        """Writes the weights, in the form that the evaluator reads."""


class ToyTask:
    pad_id = PAD_ID

    def __init__(self, work: Work) -> None:
        self.work = work

    def load(self, dtype: torch.dtype) -> PreTrainedModel:
        return AutoModelForCausalLM.from_pretrained(self.work.base, dtype=torch.float32, attn_implementation="eager")

    def prompt(self, row: Row) -> str:
        return prompt_of(row["prompt"])

    def roll(
        self, model: PreTrainedModel, rows: Sequence[Row], tools: Client, spent: Callable[[str, float], None]
    ) -> list[Sample]:
        prompts = [encode(self.prompt(row)) for row in rows]
        work = self.work
        made = sample(model, prompts, budget=work.max_new_tokens, calls=work.calls, run=tools.run, spent=spent)
        for s, row in zip(made, rows, strict=True):
            s.reward = correct(s.text, s.ended, row["label"])
        return made

    def save(self, model: PreTrainedModel, directory: Path) -> None:
        model.save_pretrained(directory)


class NumbersTask:
    def __init__(self, work: Work) -> None:
        from openrlhf_tir.config.settings import load

        from .chat_rollout import Chats

        self.base = Path(work.base)
        self.chats = Chats(load(RECIPES[work.model]), work.base)
        self.pad_id = self.chats.tokenizer.pad_token_id

    def load(self, dtype: torch.dtype) -> PreTrainedModel:
        return AutoModelForCausalLM.from_pretrained(self.base, dtype=dtype, attn_implementation="sdpa")

    def prompt(self, row: Row) -> str:
        return self.chats.task(row).prompt

    def roll(
        self, model: PreTrainedModel, rows: Sequence[Row], tools: Client, spent: Callable[[str, float], None]
    ) -> list[Sample]:
        made = []
        for trajectory in self.chats.roll(model, [self.chats.task(row) for row in rows], tools, spent):
            s = Sample(trajectory.prompt_ids.tolist(), calls=len(trajectory.calls), reward=trajectory.scored)
            for segment in trajectory.segments:
                s.append(segment.token_ids.tolist(), mine=segment.source == "model")
            s.text = "".join(segment.text for segment in trajectory.segments if segment.source == "model")
            s.ended = trajectory.finish_reason == "stop"
            made.append(s)
        return made

    def save(self, model: PreTrainedModel, directory: Path) -> None:
        """In bf16, as ours are exported, with the base's tokenizer and configuration."""
        weights = {name: weight.to(torch.bfloat16) for name, weight in model.state_dict().items()}
        model.save_pretrained(directory, state_dict=weights)
        for file in self.base.iterdir():
            if file.suffix in (".json", ".jinja") and "index" not in file.name:
                shutil.copy(file, directory)


def task_of(work: Work) -> PeersTask:
    return NumbersTask(work) if work.model == SMOLLM2 else ToyTask(work)
