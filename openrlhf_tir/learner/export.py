"""Export: what a model directory holds besides its weights. config.json, generation_config.json and the tokenizer, on
rank 0.

How the run asked its questions (the chat template, the stop strings) is added by cluster/jobs/exported.py, which knows
the turn protocol."""

from __future__ import annotations

import copy
from pathlib import Path

from transformers import AutoTokenizer, GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase


def write_model_files(config: PretrainedConfig, source: str, directory: Path) -> None:
    """`source`: the directory or name the policy started from, whose tokenizer is copied, and whose end-of-text tokens
    stay in force."""
    directory.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(config)
    config.use_cache = True  # off in training; a reader wants its generation fast
    config.save_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(source)
    generation = GenerationConfig.from_model_config(config)
    generation.eos_token_id = end_tokens(config, source, tokenizer)
    generation.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def end_tokens(config: PretrainedConfig, source: str, tokenizer: PreTrainedTokenizerBase) -> int | list[int] | None:
    """Every token that ended a response in the rollouts: those of the source's generation_config.json (config.json
    where it has none) and the tokenizer's own. One number where there is one, None where there is none."""
    try:
        given = GenerationConfig.from_pretrained(source).eos_token_id
    except OSError:  # a model without the file
        given = config.eos_token_id
    found = [given] if isinstance(given, int) else [*(given or ())]
    unique = list(dict.fromkeys(i for i in (*found, tokenizer.eos_token_id) if i is not None))
    return unique[0] if len(unique) == 1 else unique or None
