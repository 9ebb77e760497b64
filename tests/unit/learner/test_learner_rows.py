"""Groups to rows: what is trained, with which advantage, at which position."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from openrlhf_tir.algorithms.advantages import get_estimator
from openrlhf_tir.config import Config
from openrlhf_tir.errors import DataError
from openrlhf_tir.learner.balance import assign_ranks
from openrlhf_tir.learner.rows import batch_samples, local_moments, share, to_rows
from openrlhf_tir.rollout.group_meta import describe
from openrlhf_tir.types import KEEP, Group
from tests.e2e.support.learner_batch import group_of, make_batch, trajectory

ESTIMATOR = get_estimator("reinforce_baseline")


def one_group(cfg: Config, rewards=(1.0, 0.0), rank: int = 0, world: int = 1, version: int = 5):
    """Two trajectories: prompt [1, 2], model token at version 5, tool token, model token at version 4."""
    group = group_of(
        0,
        [1, 2],
        [
            trajectory(i, [1, 2], [("model", [10], 5), ("env", [20], None), ("model", [11], 4)], r)
            for i, r in enumerate(rewards)
        ],
    )
    batch = make_batch([group], world)
    samples = share(batch_samples(batch, [group], cfg, ESTIMATOR), batch.rank_of, rank)
    return samples, to_rows(samples, local_moments(samples), version, cfg, ESTIMATOR)


def test_a_row_lines_up_every_field_with_the_position_that_predicts_the_token():
    _, (row, other) = one_group(Config())
    assert row.token_ids.tolist() == [1, 2, 10, 20, 11]
    assert row.fields["trained"].tolist() == [0, 1, 0, 1]
    assert row.fields["sampled"].tolist() == [0, 1, 0, 1]
    assert row.fields["lag"].tolist() == [0, 0, 0, 1]
    assert row.fields["rollout_logprobs"].tolist() == [0, -0.5, 0, -0.5]
    # rewards 1 and 0: -+0.5, std 0.5 over the four trained tokens
    assert row.fields["advantages"].tolist() == [0, 1, 0, 1]
    assert other.fields["advantages"].tolist() == [0, -1, 0, -1]


def test_tool_output_is_trained_only_when_the_env_mask_is_off():
    _, (row, _) = one_group(Config(train={"env_mask_from": "never"}))
    assert row.fields["trained"].tolist() == [0, 1, 1, 1]
    assert row.fields["sampled"].tolist() == [0, 1, 0, 1]


def test_a_failed_trajectory_is_neither_trained_nor_counted_in_the_baseline():
    failed = trajectory(0, [1, 2], [("model", [10], 5)], 0.0)
    failed.failed = "env_error"
    group = group_of(0, [1, 2], [failed, *(trajectory(i, [1, 2], [("model", [10], 5)], float(i)) for i in (1, 2))])
    samples = batch_samples(make_batch([group], 1), [group], Config(), ESTIMATOR)
    assert [(s.trajectory.index, s.advantages.tolist()) for s in samples] == [(1, [-0.5]), (2, [0.5])]


def test_ranks_share_the_samples_out_and_lose_none():
    shares = [one_group(Config(), rewards=(1.0, 0.0, 1.0), rank=r, world=2)[0] for r in (0, 1)]
    assert sorted(s.trajectory.index for share in shares for s in share) == [0, 1, 2]
    assert all(shares)


def test_a_trajectory_that_wrote_nothing_makes_no_row():
    group = group_of(
        0, [1], [trajectory(0, [1], [("env", [20], None)], 0.0), trajectory(1, [1], [("model", [10], 5)], 1.0)]
    )
    samples = batch_samples(make_batch([group], 1), [group], Config(), ESTIMATOR)
    assert len(samples) == 2
    assert len(to_rows(samples, local_moments(samples), 5, Config(), ESTIMATOR)) == 1


def branched() -> Group:
    """Rewards 1 and 0. The first session: one token sampled, then from there two ends, a question of a sub-agent."""
    first = trajectory(0, [1, 2], [("model", [10], 5), ("env", [20], None), ("model", [11, 12], 5)], 1.0)
    again = trajectory(0, [1, 2, 10, 20], [("model", [13], 5)], 1.0)
    helper = trajectory(0, [7], [("model", [14], 4)], 1.0)
    first.branches = [again, helper]
    return group_of(0, [1, 2], [first, trajectory(1, [1, 2], [("model", [10], 5)], 0.0)])


def test_every_chain_of_a_session_is_a_row_and_every_sampled_token_is_trained_once():
    group = branched()
    batch = make_batch([group], 1)
    samples = batch_samples(batch, [group], Config(), ESTIMATOR)
    rows = to_rows(samples, local_moments(samples), 5, Config(), ESTIMATOR)
    assert [r.token_ids.tolist() for r in rows] == [[1, 2, 10, 20, 13], [7, 14], [1, 2, 10, 20, 11, 12], [1, 2, 10]]
    assert [r.fields["trained"].tolist() for r in rows] == [[0, 0, 0, 1], [1], [0, 1, 0, 1, 1], [0, 1]]
    assert sum(r.fields["trained"].sum() for r in rows) == batch.num_tokens == 6


def test_a_session_counts_once_in_its_group_and_its_reward_goes_to_all_of_its_chains():
    """The mean of the rewards 1 and 0 is 0.5, not the 0.75 of four chains."""
    group = branched()
    samples = batch_samples(make_batch([group], 1), [group], Config(), ESTIMATOR)
    assert [s.advantages.tolist() for s in samples] == [[0.5], [0.5], [0.5, 0, 0.5, 0.5], [-0.5]]


def test_with_gamma_the_reward_is_paid_at_the_end_of_the_longest_chain_and_the_others_lie_before_it():
    """Six tokens end to end, the last one is paid: distances 5, 4, 3, (2), 1, 0."""
    group = branched()
    cfg = Config(algo={"advantage": {"gamma": 0.5, "estimator": "reinforce"}})
    samples = batch_samples(make_batch([group], 1), [group], cfg, get_estimator("reinforce"))
    assert [s.advantages.tolist() for s in samples[:3]] == [[1 / 32], [1 / 16], [1 / 8, 0, 1 / 2, 1]]


def test_the_branches_of_a_masked_session_are_not_trained():
    group = branched()
    group.trajectories[0].masked = "too_long"
    samples = batch_samples(make_batch([group], 1), [group], Config(), ESTIMATOR)
    assert len(to_rows(samples, local_moments(samples), 5, Config(), ESTIMATOR)) == 1


def test_a_rank_that_trains_a_session_pays_for_all_of_its_chains():
    """Tokens of prompt, response and branches: 2 + 4 + (5 + 2) = 13 against 3 of each of the others."""
    group = branched()
    for t in group.trajectories:
        t.parts["correct"] = 1.0
    meta = describe(group, prompt_tokens=2, verdict=KEEP, failed=None, actor="", seconds=0.0)
    assert meta.branch_tokens == [7, 0]
    meta = replace(meta, response_tokens=[4, 1, 1], branch_tokens=[7, 0, 0])
    assert assign_ranks([meta], 2) == {(0, 0): 0, (0, 1): 1, (0, 2): 1}


def test_a_payload_of_another_group_is_refused():
    groups = [group_of(p, [1], [trajectory(i, [1], [("model", [10], 5)], float(i)) for i in (0, 1)]) for p in (0, 1)]
    with pytest.raises(DataError, match="0/1/0"):
        batch_samples(make_batch(groups[:1], 1), groups[1:], Config(), ESTIMATOR)


def test_whitened_advantages_of_trained_tokens_have_mean_zero_and_std_one():
    _, rows = one_group(Config(), rewards=(1.0, 0.0, 0.3, 0.9))
    adv = np.concatenate([r.fields["advantages"][r.fields["trained"] > 0] for r in rows])
    assert adv.mean() == pytest.approx(0, abs=1e-6)
    assert adv.std() == pytest.approx(1, abs=1e-6)


def test_a_masked_sample_counts_in_baseline_and_whitening_and_makes_no_row():
    """Rewards 1, 0, 0 with the last masked: the baseline stays 1/3, the std that of all six tokens; two are left."""
    group = group_of(
        0, [1, 2], [trajectory(i, [1, 2], [("model", [10, 11], 5)], r) for i, r in enumerate((1.0, 0.0, 0.0))]
    )
    group.trajectories[2].masked = "faked_output"
    samples = batch_samples(make_batch([group], 1), [group], Config(), ESTIMATOR)
    rows = to_rows(samples, local_moments(samples), 5, Config(), ESTIMATOR)
    std = (2 / 9) ** 0.5
    assert [r.fields["advantages"][-1] for r in rows] == pytest.approx([2 / 3 / std, -1 / 3 / std])


def trained_at(version: int, **train) -> list[float]:
    """The weights in the loss of model, tool and model token, at an update."""
    cfg = Config(train=train)
    group = group_of(
        0, [1, 2], [trajectory(0, [1, 2], [("model", [10], 0), ("env", [20], None), ("model", [11], 0)], 1.0)]
    )
    batch = make_batch([group], 1, step=version)
    samples = batch_samples(batch, [group], cfg, ESTIMATOR)
    (row,) = to_rows(samples, local_moments(samples), version, cfg, ESTIMATOR)
    return row.fields["trained"].tolist()[1:]


def test_tool_output_is_trained_until_its_update_and_masked_from_then_on():
    assert [trained_at(v, env_mask_from=8) for v in (0, 7, 8, 9)] == [[1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 0, 1]]
