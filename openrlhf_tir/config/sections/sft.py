"""Supervised fine-tuning: `openrlhf-tir sft`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from .base import Section


class Sft(Section):
    """`openrlhf-tir sft`, which takes its model, ranks, seed, micro batches, checkpoints and loggers from the other
    sections."""

    dataset: str | list[str] = Field(
        "",
        description=(
            "rows to learn from: JSONL or parquet file, a directory of them, or a name for datasets.load_dataset;"
            " several, separated by commas"
        ),
    )
    dataset_split: str = "train"
    eval_dataset: str = Field("", description="held-out rows, whose loss is measured; unset: none")
    eval_split: str = "test"
    eval_steps: int = Field(
        -1, ge=-1, description="measure it every so many updates; -1: before the first and after the last only"
    )
    max_samples: int = Field(100_000_000, ge=1, description="rows that are read, of each data set")
    input_key: str | None = Field(
        None,
        description=(
            "column of the messages, or of the prompt's text; unset: by the columns, 'messages', 'prompt' or 'text'"
        ),
    )
    output_key: str | None = Field(
        None,
        description=(
            "column of the response behind a prompt; unset: 'segments' or 'response' where the input is 'prompt'"
        ),
    )
    multiturn: bool = Field(True, description="every message of the assistant is learned; False: the last one only")
    input_template: str | None = Field(
        None,
        description=(
            "of prompts that are text: text with {} where it goes, or a template's name, as data.input_template"
        ),
    )
    apply_chat_template: bool = Field(
        False, description="rows of prompt and response are a chat of two messages, in the tokenizer's own template"
    )
    append_eos: bool = Field(
        True,
        description=(
            "an end token behind a response or a text, which is learned; messages and kept trajectories have their own"
        ),
    )
    mask_blocks: list[str] = Field(
        ["<interpreter>...</interpreter>"],
        description=(
            "blocks 'BEGIN...END' inside of what the assistant says that a tool wrote:"
            " they are read and not learned, with the white space around them"
        ),
    )
    max_len: int = Field(4096, ge=2, description="tokens of a row; longer ones are left out and counted")
    batch_size: int = Field(128, ge=1, description="rows of an update")
    max_epochs: int = Field(2, ge=1, description="passes over the rows")
    max_steps: int | None = Field(None, ge=1, description="end after so many updates, if that is earlier")
    learning_rate: float = Field(
        5e-6, gt=0, description="Adam step size at the end of warm-up; betas, weight decay and clipping are the actor's"
    )
    lr_scheduler: Literal["constant", "linear", "cosine", "inverse_sqrt"] = Field(
        "cosine", description="shape after warm-up, over all updates"
    )
    lr_warmup_ratio: float = Field(0.03, ge=0, lt=1)
    min_lr_ratio: float = Field(
        0.1, ge=0, le=1, description="final learning rate / learning_rate for linear and cosine"
    )

    @property
    def datasets(self) -> list[str]:
        """The data sets of sft.dataset."""
        given = self.dataset.split(",") if isinstance(self.dataset, str) else self.dataset
        return [name.strip() for name in given if name.strip()]

    @field_validator("mask_blocks", mode="after")
    @classmethod
    def _two_ends(cls, blocks: list[str]) -> list[str]:
        for block in blocks:
            begin, _, end = block.partition("...")
            if not begin.strip() or not end.strip():
                raise ValueError(
                    f"sft.mask_blocks has {block!r}, which has no beginning and end. Write BEGIN...END, e.g."
                    " '<interpreter>...</interpreter>'."
                )
        return blocks
