"""ds.ring_attn_size: what it does not go with is refused before anything is loaded."""

from __future__ import annotations

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
    with pytest.raises(ConfigError, match="6 trajectories do not divide over 4 learner ranks"):
        load(None, {**SHARED, **sizes, "ds.ring_attn_size": 1})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"actor.num_gpus_per_node": 3}, "ds.ring_attn_size = 2 does not divide the 3 learner ranks"),
        ({"ds.packing_samples": False}, "ds.packing_samples is off"),
        ({"ds.attn_implementation": "flash_attention_2"}, "not with 'flash_attention_2'"),
        ({"algo.advantage.estimator": "gae"}, "whose critic has not been tested"),
        ({"ds.lora.rank": 8}, "LoRA (ds.lora.rank = 8), which has not been tested"),
        ({"ds.use_liger_kernel": True}, "ds.use_liger_kernel, which has not been tested"),
        ({"actor.optim": "muon"}, "actor.optim = 'muon', which has not been tested"),
        ({"actor.aux_loss_coef": 0.01}, "actor.aux_loss_coef, which has not been tested"),
    ],
)
def test_what_it_does_not_go_with_is_refused(wrong, said):
    with pytest.raises(ConfigError) as refused:
        load(None, {**SHARED, **wrong})
    assert said in str(refused.value)


def test_heads_that_do_not_divide_are_refused():
    assert heads_fault(2, 14, 2) is None
    assert "4 does not divide the model's 14 attention heads and 2 key-value heads" in str(heads_fault(4, 14, 2))
    assert "8 does not divide the model's 4 key-value heads" in str(heads_fault(8, 32, 4))
