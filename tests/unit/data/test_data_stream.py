"""PromptStream: order and resumption."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_tir.data import PromptStream
from openrlhf_tir.errors import ConfigError


def drain(stream):
    return list(iter(stream.next, None))


def test_without_shuffle_the_order_is_the_files():
    assert drain(PromptStream(3, seed=0, shuffle=False, num_episodes=2)) == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
    ]


def test_every_epoch_is_another_permutation_of_all_prompts():
    issued = drain(PromptStream(50, seed=1, num_episodes=2))
    epochs = [[p for e, p in issued if e == epoch] for epoch in (0, 1)]
    assert [sorted(e) for e in epochs] == [list(range(50))] * 2
    assert epochs[0] != epochs[1] != list(range(50))


def test_the_order_depends_on_the_seed_alone():
    np.random.seed(3)
    first = drain(PromptStream(20, seed=5))
    np.random.seed(4)
    assert drain(PromptStream(20, seed=5)) == first != drain(PromptStream(20, seed=6))


@given(n=st.integers(1, 7), episodes=st.integers(1, 3), taken=st.integers(0, 25), shuffle=st.booleans())
def test_a_restored_stream_goes_on_where_the_saved_one_stood(n, episodes, taken, shuffle):
    whole = PromptStream(n, 3, shuffle, episodes)
    for _ in range(taken):
        whole.next()
    resumed = PromptStream(n, 3, shuffle, episodes)
    resumed.restore(whole.state())
    assert drain(resumed) == drain(whole)


def test_the_end_stays_the_end():
    stream = PromptStream(1, 0)
    assert [stream.next() for _ in range(4)] == [(0, 0), None, None, None]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (PromptStream(4, 0), "n_prompts = 3"),
        (PromptStream(3, 1), "seed = 0"),
        (PromptStream(3, 0, False), "shuffle = True"),
    ],
)
def test_a_position_of_another_order_is_refused(other, named):
    with pytest.raises(ConfigError, match=named):
        other.restore(PromptStream(3, 0).state())


def test_an_empty_data_set_is_refused():
    with pytest.raises(ConfigError):
        PromptStream(0, 0)
