"""A batch cut into updates: what each trains, whoever trains it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.learner.minibatches import critic_parts, cut, make_train_batch
from tests.e2e.support.learner_batch import make_batch, random_groups

GROUPS = random_groups(4, 4, seed=0)


def batch(ranks: int = 1, size: int | None = 4, epochs: int = 1, version: int = 0, seed: int = 42, groups=GROUPS):
    cfg = Config(
        actor={"num_gpus_per_node": ranks},
        rollout={"batch_size": 4, "n_samples_per_prompt": 4},
        train={"batch_size": size, "max_epochs": epochs, "max_steps": 480, "seed": seed},
    )
    return make_train_batch(cfg, version, make_batch(groups, ranks).items)


def test_one_update_of_all_is_what_it_was():
    made = batch(size=None)
    assert made.cuts == () and made.updates == (make_batch(GROUPS, 1).rank_of,)


@pytest.mark.parametrize("epochs", [1, 3])
def test_every_sample_is_trained_once_in_each_epoch(epochs):
    made = batch(epochs=epochs)
    assert [len(u) for u in made.updates] == [4] * 4 * epochs
    assert set(Counter(key for u in made.updates for key in u).values()) == {epochs}
    for epoch in range(epochs):
        assert len({key for u in made.updates[4 * epoch : 4 * epoch + 4] for key in u}) == 16


def test_epochs_versions_and_seeds_cut_anew_and_the_same_ones_cut_alike():
    parts = [[set(u) for u in batch(**kw).updates] for kw in ({}, {"version": 4}, {"seed": 1}, {})]
    assert parts[0] == parts[3] and parts[0] != parts[1] != parts[2]
    twice = [set(u) for u in batch(epochs=2).updates]
    assert twice[:4] == parts[0] != twice[4:]


def test_the_parts_do_not_depend_on_the_number_of_ranks_that_share_them():
    one, two = batch(ranks=1, epochs=2), batch(ranks=2, epochs=2)
    assert [set(u) for u in one.updates] == [set(u) for u in two.updates]
    for update in two.updates:
        assert set(update.values()) == {0, 1}


def test_what_is_trained_once_is_owned_by_the_rank_that_trains_it():
    made = batch(ranks=2)
    assert all(made.rank_of[key] == rank for update in made.updates for key, rank in update.items())


def test_the_critics_parts_do_not_depend_on_the_number_of_ranks_and_each_is_spread_over_them():
    def made(ranks: int, updates: int | None, estimator: str = "gae", **train: int):
        sections = {
            "actor": {"num_gpus_per_node": ranks},
            "rollout": {"batch_size": 4, "n_samples_per_prompt": 4},
            "critic": {"updates": updates},
        }
        cfg = Config(**sections, train={"max_steps": 480, **train}, algo={"advantage": {"estimator": estimator}})
        items = make_batch(GROUPS, ranks).items
        return critic_parts(cfg, 0, [i.meta for i in items]), make_train_batch(cfg, 0, items)

    parts, batch = made(2, 4)
    assert (
        parts == made(1, 4)[0]
        and sorted(key for part in parts for key in part) == sorted(batch.rank_of)
        and batch.cuts == ()
    )
    assert [sorted(batch.rank_of[key] for key in part) for part in parts] == [[0, 0, 1, 1]] * 4
    assert made(2, None)[0] == made(2, 1)[0] == made(2, 4, "reinforce")[0] == []
    parts, batch = made(2, None, batch_size=4)
    assert [set(part) for part in parts] == [set(u) for u in batch.updates], "the policy's, without a number of its own"


def test_lost_and_masked_samples_make_parts_smaller_not_fewer():
    groups = random_groups(4, 4, seed=0)
    groups[0].trajectories[1].failed = "timeout"
    items = make_batch(groups, 1).items
    items[1] = replace(items[1], meta=replace(items[1].meta, masked=["", "length", "", ""]))
    parts = cut([i.meta for i in items], 4, (0, 0, 0))
    assert [len(p) for p in parts] == [4, 4, 3, 3]
    assert (1, 1) not in {key for p in parts for key in p}
    assert [len(p) for p in cut([items[0].meta], 4, (0, 0, 0))] == [1, 1, 1]  # three samples: three updates


@pytest.mark.parametrize("size", [None, 4])
def test_ranks_that_share_their_sequences_are_one_owner(size):
    cfg = Config(
        rollout={"batch_size": 4, "n_samples_per_prompt": 4},
        actor={"num_gpus_per_node": 4},
        ds={"ring_attn_size": 2, "packing_samples": True, "attn_implementation": "sdpa"},
        train={"batch_size": size, "max_steps": 4},
        pipeline={"max_staleness": 7},
    )
    given = make_train_batch(cfg, 0, make_batch(GROUPS, 1).items)
    assert {rank for part in given.updates for rank in part.values()} == set(given.rank_of.values()) == {0, 1}
