"""Sampling with one random number a token (engines/cpu_sampler.py)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from openrlhf_tir.engines.cpu_sampler import ROWS, draw, install

VOCABULARY = 1000
DRAWS = 20_000


def seeded(seed: int) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(seed)
    return generator


def test_tokens_are_drawn_with_their_probabilities():
    torch.manual_seed(0)
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.0, 0.05])
    tokens = draw(probabilities.expand(DRAWS, -1), {})
    counts = torch.bincount(tokens, minlength=6).double()
    assert counts[probabilities == 0].sum() == 0
    expected = DRAWS * probabilities[probabilities > 0].double()
    chi_square = ((counts[probabilities > 0] - expected) ** 2 / expected).sum()
    assert chi_square < 21.1, "the quantile of .9999 with 3 degrees of freedom"


def test_a_rare_token_beside_a_sum_near_one_keeps_its_share(monkeypatch):
    """In float32 a sum near 1 changes in steps of 6e-8, so that this tail would end where it begins."""
    tail = 1e-8
    probabilities = torch.full((1, VOCABULARY), tail)
    probabilities[0, 0] = 1 - tail * (VOCABULARY - 1)
    total = probabilities.double().sum()
    middle = float((probabilities[0, 0].double() + 500.5 * tail) / total)
    monkeypatch.setattr(torch, "rand", lambda *size, dtype: torch.full(size, middle, dtype=dtype))
    assert draw(probabilities, {}).tolist() == [501]


def test_a_request_with_a_seed_draws_the_same_whatever_else_is_in_the_batch():
    torch.manual_seed(2)
    probabilities = torch.rand(3 * ROWS + 1, VOCABULARY).softmax(-1)
    alone = [int(draw(row[None], {0: seeded(number)})) for number, row in enumerate(probabilities)]
    together = draw(probabilities, {number: seeded(number) for number in range(len(probabilities))})
    assert together.tolist() == alone
    torch.manual_seed(3)
    some = draw(probabilities, {number: seeded(number) for number in range(0, len(probabilities), 2)})
    assert some[::2].tolist() == alone[::2]


def test_requests_without_a_seed_draw_anew_at_every_step():
    probabilities = torch.full((64, VOCABULARY), 1 / VOCABULARY)
    assert draw(probabilities, {}).tolist() != draw(probabilities, {}).tolist()


@pytest.mark.parametrize("row", [torch.full((4,), float("nan")), torch.zeros(4)])
def test_a_row_without_probabilities_gives_a_token_of_the_vocabulary(row):
    tokens = draw(torch.stack([row, torch.tensor([0.0, 0.0, 1.0, 0.0])]), {})
    assert 0 <= tokens[0] < 4 and tokens[1] == 2


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logits", "processed_logprobs"])
@pytest.mark.parametrize(("k", "p"), [(3, None), (None, 0.3), (5, 0.5), (None, None)])
def test_the_filters_and_the_log_probs_are_vllms(mode, k, p, monkeypatch):
    ops = pytest.importorskip("vllm.v1.sample.ops.topk_topp_sampler")
    monkeypatch.setattr(ops, "random_sample", ops.random_sample)  # puts vLLM's own back at the end
    sampler = SimpleNamespace(topk_topp_sampler=ops.TopKTopPSampler(mode))
    torch.manual_seed(4)
    logits = torch.randn(50, VOCABULARY)
    limits = (None if k is None else torch.full((50,), k), None if p is None else torch.full((50,), p))
    _, vllms = sampler.topk_topp_sampler.forward_native(logits.clone(), {}, *limits)
    install(sampler)
    torch.manual_seed(5)
    tokens, processed = sampler.topk_topp_sampler.forward(logits.clone(), {}, *limits)
    assert (processed is None and vllms is None) or torch.equal(processed, vllms)
    kept = ops.apply_top_k_top_p(logits.clone(), *limits)
    assert kept.gather(-1, tokens[:, None]).isfinite().all()
    torch.manual_seed(5)
    assert torch.equal(tokens, draw(kept.softmax(-1, dtype=torch.float32), {})), "one random number a token"
