"""Write an exported model: weights, config.json, generation_config.json, the tokenizer, and with LoRA the adapter.

cluster/jobs/exported.py adds how the run asked its questions (chat template, stop strings), because only the jobs know
the turn protocol.
"""

from __future__ import annotations

import copy
from pathlib import Path

from torch import nn
from transformers import AutoTokenizer, GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase

from .agreement import only_on_rank_0
from .lora import ADAPTER, adapter_weights, hf_weights
from .weight_shards import write_shards
from .weights_file import write_file

ADAPTER_DIRECTORY = "adapter"
"""Directory of an exported model in which the LoRA adapter is, if there is one."""


def export_policy(module: nn.Module, config: PretrainedConfig, source: str, directory: Path, *, rank: int) -> None:
    """Write a directory that plain transformers loads. Collective.

    Args:
        module: The policy, without a wrapper; with LoRA it is peft's.
        config: The model's configuration.
        source: Directory or hub name of the model that the run started from.
        directory: Where to write; created if missing.
        rank: This rank; rank 0 writes.

    Raises:
        OSError: On every rank if rank 0's disk is full or fails, or `source` has no tokenizer.
    """
    write_shards(hf_weights(module), directory, rank=rank)
    if adapter := adapter_weights(module):
        adapter_directory = directory / ADAPTER_DIRECTORY
        write_file(adapter, adapter_directory / "adapter_model.safetensors", rank=rank)
        only_on_rank_0(rank, module.peft_config[ADAPTER].save_pretrained, str(adapter_directory))
    only_on_rank_0(rank, write_model_files, config, source, directory)


def write_model_files(config: PretrainedConfig, source: str, directory: Path) -> None:
    """Write the configuration and the tokenizer of a model into `directory`. On rank 0 only.

    Args:
        config: The model's configuration.
        source: Directory or hub name of the model that the run started from. Its tokenizer is copied, and its
            end-of-text tokens are kept.
        directory: Where to write; created if missing.

    Raises:
        OSError: The disk refuses to write, or `source` has no tokenizer.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(config)
    config.use_cache = True  # training turns it off, but whoever loads the export wants fast generation
    config.save_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(source)
    generation = GenerationConfig.from_model_config(config)
    generation.eos_token_id = end_tokens(config, source, tokenizer)
    generation.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def end_tokens(config: PretrainedConfig, source: str, tokenizer: PreTrainedTokenizerBase) -> int | list[int] | None:
    """Return every token that ended a response in the rollouts.

    These are the end-of-text tokens of the source's generation_config.json, or of `config` if it has no such file,
    and the tokenizer's own.

    Returns:
        A number if there is one such token, a list if there are several, None if there is none.
    """
    try:
        configured = GenerationConfig.from_pretrained(source).eos_token_id
    except OSError:  # the source has no generation_config.json
        configured = config.eos_token_id
    tokens = [configured] if isinstance(configured, int) else [*(configured or ())]
    unique = list(dict.fromkeys(i for i in (*tokens, tokenizer.eos_token_id) if i is not None))
    return unique[0] if len(unique) == 1 else unique or None
