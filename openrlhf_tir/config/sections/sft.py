"""Supervised fine-tuning: `openrlhf-tir sft`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import field_validator

from ..setting import Fault, rule, setting
from .base import Section, names_of

if TYPE_CHECKING:
    from ..schema import Config


class Sft(Section):
    """`openrlhf-tir sft`, which takes its model, ranks, seed, micro batches, checkpoints and loggers from the other
    sections, and from data and eval which rows are read and how often the loss is measured."""

    FINE_TUNING: ClassVar[bool] = True

    dataset: str | list[str] = setting(
        "",
        description=(
            "Rows to learn from: JSONL or parquet file, directory of such files, or name for datasets.load_dataset."
            " Several are separated by commas."
        ),
        short="messages, prompt and segments or response, text",
        names="input_files",
    )
    eval_dataset: str = setting(
        "",
        description="Held-out rows whose loss is measured every eval.steps updates. Unset: none.",
        names="input_files",
    )
    input_key: str | None = setting(
        None,
        description="Column of the messages or of the prompt's text. Unset: 'messages', 'prompt' or 'text'.",
    )
    output_key: str | None = setting(
        None,
        description="Column of the response to a prompt. Unset: 'segments' or 'response' if the input is 'prompt'.",
    )
    multiturn: bool = setting(True, description="Learn every message of the assistant. False: only the last one.")
    input_template: str | None = setting(
        None,
        description=(
            "For prompts that are text: text with {} in place of the prompt, or the name of a template, as"
            " data.input_template."
        ),
    )
    apply_chat_template: bool = setting(
        False,
        description="Render prompt and response as a chat of two messages, in the tokenizer's own template.",
    )
    append_eos: bool = setting(
        True,
        description=(
            "Learn an end token behind a response or a text. Messages and kept trajectories have their own end."
        ),
    )
    mask_blocks: list[str] = setting(
        ["<interpreter>...</interpreter>"],
        description=(
            "Blocks 'BEGIN...END' inside the assistant's text that a tool wrote: they are read and not learned,"
            " including the white space around them."
        ),
        short="blocks that a tool wrote: read, not learned",
    )
    max_len: int = setting(
        4096,
        ge=2,
        description="Length of a row. Longer rows are left out and counted.",
        short="tokens of a row",
        unit="tokens",
    )
    batch_size: int = setting(128, ge=1, description="Rows of an update.", unit="rows")
    max_epochs: int = setting(2, ge=1, description="Passes over the rows.")
    max_steps: int | None = setting(
        None, ge=1, description="End after this many updates, if that is earlier.", unit="updates"
    )
    learning_rate: float = setting(
        5e-6,
        gt=0,
        description="Adam step size at the end of warm-up. Betas, weight decay and clipping are the actor's.",
        short="the learning rate",
    )
    lr_scheduler: Literal["constant", "linear", "cosine", "inverse_sqrt"] = setting(
        "cosine", description="Shape of the learning rate after warm-up, over all updates."
    )
    lr_warmup_ratio: float = setting(
        0.03, ge=0, lt=1, description="Share of the updates in which the learning rate rises to its value."
    )
    min_lr_ratio: float = setting(
        0.1,
        ge=0,
        le=1,
        description="Final learning rate divided by learning_rate, for linear and cosine.",
    )

    @property
    def datasets(self) -> list[str]:
        """The data sets of sft.dataset."""
        return names_of(self.dataset)

    @field_validator("mask_blocks", mode="after")
    @classmethod
    def _blocks_have_two_ends(cls, blocks: list[str]) -> list[str]:
        for block in blocks:
            begin, _, end = block.partition("...")
            if not begin.strip() or not end.strip():
                raise ValueError(
                    f"sft.mask_blocks has {block!r}, which has no beginning and end. Write BEGIN...END, e.g."
                    " '<interpreter>...</interpreter>'."
                )
        return blocks


@rule("sft.dataset", commands=("sft",))
def there_are_rows_to_learn_from(c: Config) -> Iterator[Fault]:
    if not c.sft.datasets:
        yield (
            "sft.dataset is not set. Give rows to learn from: a JSONL or parquet file,"
            " a directory of them, or a name on the hub."
        )


@rule("sft.batch_size", commands=("sft",))
def every_rank_has_a_row_of_an_update(c: Config) -> Iterator[Fault]:
    if c.sft.batch_size < c.shards:
        yield (
            f"sft.batch_size = {c.sft.batch_size} is less than the {c.shards} learner ranks that share an update."
            " Raise it, or lower actor.num_gpus_per_node."
        )


@rule("sft.output_key", commands=("sft",))
def responses_have_a_column_of_prompts(c: Config) -> Iterator[Fault]:
    if c.sft.output_key is not None and c.sft.input_key is None:
        yield (
            f"sft.output_key = {c.sft.output_key!r} goes with a column of prompts, and sft.input_key is unset."
            " Name that column too."
        )


@rule("sft.max_len", commands=("sft",))
def longest_row_fits_into_a_forward_pass(c: Config) -> Iterator[Fault]:
    if c.sft.max_len > c.train.max_tokens_per_gpu * c.ds.ring_attn_size:
        yield (
            f"sft.max_len = {c.sft.max_len} tokens do not fit into a forward pass of train.max_tokens_per_gpu ="
            f" {c.train.max_tokens_per_gpu}. Lower the first or raise the second."
        )
