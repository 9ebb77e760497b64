"""Groups to rows: what is trained, with which advantage, at which position."""

from __future__ import annotations

import numpy as np
import pytest

from openrlhf_tir.algorithms.advantages import get_estimator
from openrlhf_tir.config import Config
from openrlhf_tir.errors import DataError
from openrlhf_tir.learner.rows import batch_samples, local_moments, share, to_rows
from tests.e2e.learner_batch import group_of, make_batch, trajectory

ESTIMATOR = get_estimator("reinforce_baseline")


def one_group(cfg: Config, rewards=(1.0, 0.0), rank: int = 0, world: int = 1, version: int = 5):
    """Two trajectories: prompt [1, 2], model token at version 5, tool token, model token at version 4."""
    group = group_of(0, [1, 2], [trajectory(i, [1, 2], [("model", [10], 5), ("env", [20], None), ("model", [11], 4)], r) for i, r in enumerate(rewards)])
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
    _, (row, _) = one_group(Config(train={"env_mask": False}))
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
    group = group_of(0, [1], [trajectory(0, [1], [("env", [20], None)], 0.0), trajectory(1, [1], [("model", [10], 5)], 1.0)])
    samples = batch_samples(make_batch([group], 1), [group], Config(), ESTIMATOR)
    assert len(samples) == 2
    assert len(to_rows(samples, local_moments(samples), 5, Config(), ESTIMATOR)) == 1


def test_a_payload_of_another_group_is_refused():
    groups = [group_of(p, [1], [trajectory(i, [1], [("model", [10], 5)], float(i)) for i in (0, 1)]) for p in (0, 1)]
    with pytest.raises(DataError, match="the payload is of group 0/1/0"):
        batch_samples(make_batch(groups[:1], 1), groups[1:], Config(), ESTIMATOR)


def test_whitened_advantages_of_trained_tokens_have_mean_zero_and_std_one():
    _, rows = one_group(Config(), rewards=(1.0, 0.0, 0.3, 0.9))
    adv = np.concatenate([r.fields["advantages"][r.fields["trained"] > 0] for r in rows])
    assert adv.mean() == pytest.approx(0, abs=1e-6)
    assert adv.std() == pytest.approx(1, abs=1e-6)


def test_a_masked_sample_counts_in_baseline_and_whitening_and_makes_no_row():
    """Rewards 1, 0, 0 with the last masked: the baseline stays 1/3 and the std that of all six tokens; two rows are left."""
    group = group_of(0, [1, 2], [trajectory(i, [1, 2], [("model", [10, 11], 5)], r) for i, r in enumerate((1.0, 0.0, 0.0))])
    group.trajectories[2].masked = "faked_output"
    samples = batch_samples(make_batch([group], 1), [group], Config(), ESTIMATOR)
    rows = to_rows(samples, local_moments(samples), 5, Config(), ESTIMATOR)
    std = (2 / 9) ** 0.5
    assert [r.fields["advantages"][-1] for r in rows] == pytest.approx([2 / 3 / std, -1 / 3 / std])


def trained_at(version: int, **train) -> list[float]:
    """The weights in the loss of model, tool and model token, at an update."""
    cfg = Config(train=train)
    group = group_of(0, [1, 2], [trajectory(0, [1, 2], [("model", [10], 0), ("env", [20], None), ("model", [11], 0)], 1.0)])
    batch = make_batch([group], 1, step=version)
    samples = batch_samples(batch, [group], cfg, ESTIMATOR)
    (row,) = to_rows(samples, local_moments(samples), version, cfg, ESTIMATOR)
    return row.fields["trained"].tolist()[1:]


def test_tool_output_is_trained_until_its_update_and_masked_from_then_on():
    assert [trained_at(v, env_mask_from=8) for v in (0, 7, 8, 9)] == [[1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 0, 1]]


def test_tool_output_has_its_own_weight_in_the_loss():
    assert trained_at(0, env_mask=False, env_coef=0.25) == [1, 0.25, 1]
    assert trained_at(9, env_mask_from=8, env_coef=0.25) == [1, 0, 1]
