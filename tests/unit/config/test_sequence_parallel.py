"""ds.ring_attn_size: what it does not go with is refused before anything is loaded."""

from __future__ import annotations

import re

import pytest

from openrlhf_tir.config.sections.sequence_parallel import heads_fault
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError

SHARED = {
    "ds.ring_attn_size": 2,
    "ds.packing_samples": True,
    "ds.attn_implementation": "sdpa",
    "actor.num_gpus_per_node": 4,
}


def test_four_ranks_in_pairs_are_two_shards_of_a_batch():
    assert load(None, SHARED).shards == 2
    assert load(None, {**SHARED, "ds.ring_attn_size": 1}).shards == 4


def test_a_batch_has_to_divide_over_the_pairs_and_not_over_the_ranks():
    sizes = {"rollout.batch_size": 3, "rollout.n_samples_per_prompt": 2}
    assert load(None, {**SHARED, **sizes}).shards == 2
    with pytest.raises(ConfigError) as e:
        load(None, {**SHARED, **sizes, "ds.ring_attn_size": 1})
    assert (e.value.code, e.value.setting) == ("samples_divide_over_the_ranks", "rollout.n_samples_per_prompt")


@pytest.mark.parametrize(
    "wrong",
    [
        {"actor.num_gpus_per_node": 3},
        {"ds.packing_samples": False},
        {"ds.attn_implementation": "flash_attention_2"},
        {"ds.lora.rank": 8},
        {"ds.use_liger_kernel": True},
        {"actor.optim": "muon"},
        {"actor.aux_loss_coef": 0.01},
    ],
)
def test_what_it_does_not_go_with_is_refused(wrong):
    with pytest.raises(ConfigError) as e:
        load(None, {**SHARED, **wrong})
    assert ("shared_sequences_are_supported", "ds.ring_attn_size") in {(p.code, p.setting) for p in e.value.problems}


def test_heads_that_do_not_divide_are_refused():
    assert heads_fault(2, 14, 2) is None
    assert re.search(r"\b4 .*\b14 .*\b2 ", str(heads_fault(4, 14, 2)))
    assert re.search(r"\b8 .*\b4 ", str(heads_fault(8, 32, 4)))
