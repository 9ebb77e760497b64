"""Export: what a model directory holds besides its weights. config.json, generation_config.json and the tokenizer, on rank 0."""

from __future__ import annotations

import copy
from pathlib import Path

from transformers import AutoTokenizer, GenerationConfig, PretrainedConfig


def write_model_files(config: PretrainedConfig, source: str, directory: Path) -> None:
    """`source`: the directory or name the policy started from, whose tokenizer is copied."""
    directory.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(config)
    config.use_cache = True  # off in training; a reader wants its generation fast
    config.save_pretrained(directory)
    GenerationConfig.from_model_config(config).save_pretrained(directory)
    AutoTokenizer.from_pretrained(source).save_pretrained(directory)
