"""Sample tokens on a CPU with one random number a token instead of one for each entry of the vocabulary.

vLLM divides the probabilities by exponential noise and takes the largest. On a CPU that noise costs 2.7 ms a token for
49,152 entries, more than a small model's whole forward pass. Here a token is the first whose cumulative probability
exceeds a uniform number, which is the same distribution. Log-probs are computed as before, by vLLM.

`install` runs in vLLM's worker, which calls the sampler for every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

ROWS = 8
"""Rows that are summed at once: their cumulative sums stay in the processor's cache."""


def install(sampler: Any) -> None:
    """Let a vLLM sampler draw its tokens by `draw`. The filters before and the log-probs are its own."""
    from vllm.v1.sample.ops import topk_topp_sampler as ops

    ops.random_sample = lambda probabilities, generators, *_: draw(probabilities, generators)
    sampler.topk_topp_sampler.forward = sampler.topk_topp_sampler.forward_native


def draw(probabilities: torch.Tensor, generators: Mapping[int, torch.Generator]) -> torch.Tensor:
    """Draw a token from each row.

    Args:
        probabilities: [requests, vocabulary] float32; a row need not sum to exactly 1.
        generators: Row -> generator of a request that has a seed: it draws the same whatever else is in the batch.

    Returns:
        [requests] int64.
    """
    uniform = torch.rand(len(probabilities), 1, dtype=torch.float64)
    for row, generator in generators.items():
        uniform[row].uniform_(generator=generator)
    tokens = torch.empty(len(probabilities), dtype=torch.int64)
    for start in range(0, len(probabilities), ROWS):
        rows = slice(start, start + ROWS)
        # In float32 a rare token's share would be lost beside a sum near 1.
        cumulative = probabilities[rows].cumsum(-1, dtype=torch.float64)
        total = cumulative[:, -1:]
        # The product may round up to the total, which no cumulative probability exceeds.
        threshold = torch.minimum(uniform[rows] * total, torch.nextafter(total, torch.zeros_like(total)))
        # The first entry above the threshold has a probability above 0.
        tokens[rows] = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)
    # A row that is no number has no such entry; its log-probs say so, and its engine is given up (in_flight.no_number).
    return tokens.clamp_(max=probabilities.shape[-1] - 1)
