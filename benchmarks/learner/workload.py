"""Batches with the seed workload's lengths, scaled down by LENGTH_SCALE: model text, tool output, model text, ..., of
random tokens.

Padding, packing and the spread over ranks depend on the lengths' ratios alone, which scaling leaves as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from openrlhf_tir.learner.balance import assign_ranks
from openrlhf_tir.simulation.workload import PROMPT_TOKENS, SEED_WORKLOAD, Workload
from openrlhf_tir.types import KEEP, BatchItem, Group, GroupKey, GroupMeta, Segment, Task, TrainBatch, Trajectory

LENGTH_SCALE = 8
MAX_TOKENS = 16_192 // LENGTH_SCALE
"""Tokens of a forward pass: the default of train.max_tokens_per_gpu, scaled as the lengths are."""


@dataclass(frozen=True)
class Size:
    """The size of what the step is measured on. The head's share of the model's arithmetic is that of a Qwen2.5-1.5B,
    an eighth to a seventh."""

    prompts: int = 8
    samples: int = 8
    vocabulary: int = 2048
    hidden: int = 256
    layers: int = 4
    rounds: int = 7

    @classmethod
    def quick(cls) -> Size:
        return cls(prompts=4, samples=4, vocabulary=256, hidden=64, layers=2, rounds=2)


def trajectory(workload: Workload, key: GroupKey, index: int, vocabulary: int) -> Trajectory:
    """Its lengths are the workload's for that key; log-probs near those of a fresh model, rewards 0 and 1 in turn."""
    script, rng = workload.script(key, index), np.random.default_rng([key.prompt, index])

    def drawn(tokens: int) -> np.ndarray:
        return rng.integers(2, vocabulary, max(1, round(tokens / LENGTH_SCALE))).astype(np.int32)

    segments = []
    for i, tokens in enumerate(script.segments):
        ids = drawn(tokens)
        near = rng.normal(-np.log(vocabulary), 0.1, len(ids)).astype(np.float32)
        segments.append(Segment("model", ids, near, np.zeros(len(ids), np.int32)))
        if i < len(script.observations):
            segments.append(Segment.of_env(drawn(script.observations[i]).tolist(), ""))
    return Trajectory(
        index, drawn(PROMPT_TOKENS), segments, finish_reason="stop", reward=float((index + key.prompt) % 2)
    )


def batch(size: Size, number: int, ranks: int) -> tuple[TrainBatch, list[Group]]:
    """Batch `number`: other prompts than every other batch's. Spread over ranks as the controller does."""
    workload = Workload.read(SEED_WORKLOAD)
    groups = [
        Group(key, Task("", ""), [trajectory(workload, key, i, size.vocabulary) for i in range(size.samples)])
        for key in (GroupKey(0, number * size.prompts + p) for p in range(size.prompts))
    ]
    metas = [_meta(group) for group in groups]
    return TrainBatch(0, [BatchItem(meta, None) for meta in metas], assign_ranks(metas, ranks)), groups


def _meta(group: Group) -> GroupMeta:
    of = group.trajectories
    rewards = [t.scored for t in of]
    right = [r > 0 for r in rewards]
    lengths, written = [len(t.token_ids) for t in of], [t.model_tokens for t in of]
    return GroupMeta(
        group.key, KEEP, [t.index for t in of], rewards, right, right, lengths, written, len(of[0].prompt_ids), 0
    )


def save_model(directory: str, size: Size) -> int:
    """Random Qwen2 weights of that size; the number of parameters."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=3 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 64,
        num_key_value_heads=max(1, size.hidden // 128),
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(directory)
    return model.num_parameters()
