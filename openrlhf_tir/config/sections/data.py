"""The prompts."""

from __future__ import annotations

from pydantic import Field

from .base import Option, Section


class Data(Section):
    prompt_dataset: str = Field("", description="JSONL or parquet file, a directory of them, or a name for datasets.load_dataset")
    prompt_split: str = "train"
    input_key: str = "prompt"
    label_key: str = "label"
    env_key: str = Field("env", description="column that names the row's environment, if there is one")
    input_template: str | None = Field(None, description="text with {} where the input goes, or a template's name: zerotir, torl, user_assistant")
    apply_chat_template: bool = Field(False, description="render the input as a chat with the tokenizer's own template")
    chat_template_options: dict[str, Option] = Field(
        default_factory=dict, description="what the chat template takes besides messages and tools, e.g. enable_thinking = false"
    )
    max_samples: int = Field(100_000_000, ge=1)
    max_len: int = Field(10240, ge=2, description="prompt + response tokens; rows with longer prompts are dropped and counted")
    shuffle: bool = True
