"""The prompts."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from .base import Option, Section


class Data(Section):
    prompt_dataset: str | list[str] = Field(
        "",
        description=(
            "JSONL or parquet file, a directory of them, or a name for datasets.load_dataset;"
            " several, separated by commas or as a list, are blended"
        ),
    )
    prompt_probs: list[float] | None = Field(
        None,
        description=(
            "how often each of several data sets is drawn from, relative to the others; unset: all rows as one data set"
        ),
    )
    prompt_split: str = "train"
    input_key: str = "prompt"
    label_key: str = "label"
    row_schema: str | None = Field(
        None,
        description=(
            "whose rows these are, in place of input_key and label_key: bfcl_multi_turn, dapo, orz, question_answer,"
            " searchr1, swegym, tooln1, toolrl, torl, verl; unset: by their columns"
        ),
    )
    env_key: str = Field("env", description="column that names the row's environment, if there is one")
    input_template: str | None = Field(
        None,
        description=(
            "text with {} where the input goes and {name} where another column of the row does, or a template's"
            " name: artist, otc, retool, searchr1, searchr1_pages,"
            " torl, user_assistant, zerotir"
        ),
    )
    apply_chat_template: bool = Field(False, description="render the input as a chat with the tokenizer's own template")
    rendered: bool = Field(
        False,
        description=(
            "prompts are texts that a chat template has rendered already: the special tokens in them are meant, and no"
            " token that begins a text is put before them"
        ),
    )
    chat_template_options: dict[str, Option] = Field(
        default_factory=dict,
        description="what the chat template takes besides messages and tools, e.g. enable_thinking = false",
    )
    max_samples: int = Field(100_000_000, ge=1, description="rows that are read, of each data set")
    max_len: int = Field(
        10240, ge=2, description="prompt + response tokens; rows with longer prompts are dropped and counted"
    )
    on_bad_row: Literal["error", "skip"] = Field(
        "error",
        description=(
            "a row that cannot be read, or lacks input or label: refuse the data,"
            " or leave the row out, counted and listed"
        ),
    )
    dataloader_num_workers: int = Field(
        0,
        ge=0,
        le=256,
        description="processes that render prompts with the chat template at the start; 0: none besides",
    )
    cache_dir: str | None = Field(
        None,
        description=(
            "directory that keeps prepared prompts of large data sets, so that later starts do not read every row"
            " again; off: none is kept; unset: openrlhf-tir in $XDG_CACHE_HOME or ~/.cache"
        ),
    )
    shuffle: bool = True
    curriculum: Literal["off", "difficulty"] = Field(
        "off",
        description=(
            "which prompt is next: off: passes over all of them; difficulty:"
            " one whose group is likely to be kept, by a posterior of its pass rate"
        ),
    )

    @property
    def datasets(self) -> list[str]:
        """The data sets of data.prompt_dataset."""
        given = self.prompt_dataset.split(",") if isinstance(self.prompt_dataset, str) else self.prompt_dataset
        return [name.strip() for name in given if name.strip()]

    @field_validator("prompt_probs", mode="before")
    @classmethod
    def _separated(cls, value: Any) -> Any:
        """OpenRLHF's way of writing: 0.7,0.3."""
        parts = [value] if isinstance(value, str) else value
        return (
            [x for part in parts for x in (part.split(",") if isinstance(part, str) else [part])]
            if isinstance(parts, list | tuple)
            else value
        )
