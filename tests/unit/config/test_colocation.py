"""train.colocate_all in a configuration: what it goes with, what it is refused with and why, OpenRLHF's flags."""

from __future__ import annotations

import pytest

from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError

from .test_flags_openrlhf import parse

SHARED = {"train.colocate_all": True, "pipeline.mode": "sync", "actor.num_gpus_per_node": 2}


def test_sync_with_an_engine_for_each_rank_or_fewer_is_accepted():
    for engines in (1, 2):
        assert load(None, SHARED | {"vllm.num_engines": engines}).train.colocate_all
    assert not load(None, {}).train.colocate_all


def test_the_watchdog_waits_for_an_engine_that_starts_while_all_wait_for_it():
    short = {"rollout.group_deadline_s": 600, "timeouts.start_s": 1800}
    assert load(None, SHARED | short).stall_timeout_s == load(None, short).stall_timeout_s + 1800


def test_the_watchdog_waits_for_a_step_of_the_learner_while_engines_wait_at_the_gate():
    for push_s, learner_s in ((600, 3600), (3600, 600)):
        cfg = load(None, {"timeouts.push_s": push_s, "timeouts.learner_s": learner_s})
        assert cfg.stall_timeout_s == cfg.rollout.group_deadline_s + 3600


@pytest.mark.parametrize(
    ("change", "code", "setting"),
    [
        ({"pipeline.mode": "pipeline"}, "rank_and_engine_take_turns", "train.colocate_all"),
        ({"pipeline.mode": "one_step"}, "rank_and_engine_take_turns", "train.colocate_all"),
        ({"pipeline.mode": "pipeline_drain"}, "rank_and_engine_take_turns", "train.colocate_all"),
        ({"vllm.num_engines": 3}, "rank_and_engine_take_turns", "train.colocate_all"),
        ({"vllm.tensor_parallel_size": 2}, "rank_and_engine_take_turns", "train.colocate_all"),
        ({"vllm.sync_backend": "nccl"}, "rank_and_engine_take_turns", "train.colocate_all"),
        ({"ds.zero_stage": 2}, "rank_and_engine_take_turns", "train.colocate_all"),
        ({"actor.optim": "muon"}, "rank_and_engine_take_turns", "train.colocate_all"),
        (
            {"algo.advantage.estimator": "gae", "critic.optim": "muon"},
            "critic_can_be_moved",
            "train.colocate_all",
        ),
        (
            {"vllm.num_engines": 2, "pipeline.fast_lane": 1},
            "fast_lane_has_work_and_engines",
            "pipeline.fast_lane",
        ),
    ],
)
def test_what_it_does_not_go_with_is_refused(change, code, setting):
    with pytest.raises(ConfigError) as e:
        load(None, SHARED | change)
    (problem,) = e.value.problems
    assert (problem.code, problem.setting) == (code, setting)


def test_what_it_does_not_go_with_is_accepted_where_nothing_is_shared():
    given = SHARED | {
        "train.colocate_all": False,
        "pipeline.mode": "pipeline",
        "vllm.num_engines": 3,
        "vllm.tensor_parallel_size": 2,
        "ds.zero_stage": 2,
    }
    assert load(None, given).vllm.num_engines == 3


def test_a_script_of_openrlhf_that_colocates_keeps_its_flags():
    flags = ["--train.colocate_all", "--pipeline.mode", "sync", "--vllm.enable_sleep", "--ds.enable_sleep"]
    assert parse(*flags) == parse("--train.colocate_all", "--pipeline.mode", "sync")
    assert parse(*flags).train.colocate_all


def test_one_that_is_asynchronous_besides_is_told_that_the_two_exclude_each_other():
    with pytest.raises(
        ConfigError,
        match=r"train\.colocate_all .*pipeline\.mode = 'one_step'",
    ):
        parse("--train.colocate_all", "--pipeline.mode", "one_step")


def test_a_critic_beside_a_reward_model_is_refused_with_where_they_are():
    with pytest.raises(ConfigError, match=r"train\.colocate_critic_reward .*--reward\.num_gpus_per_node"):
        parse("--train.colocate_critic_reward")


BESIDE = {"train.share_gpus": True, "vllm.kv_cache_mib": 1024, "actor.num_gpus_per_node": 2}


@pytest.mark.parametrize("mode", ["sync", "one_step", "pipeline"])
def test_engine_and_rank_hold_one_gpu_at_the_same_time_in_every_mode(mode):
    config = load(None, BESIDE | {"vllm.num_engines": 2, "pipeline.mode": mode})
    assert config.engines_beside_ranks


@pytest.mark.parametrize(
    "change",
    [
        {"vllm.kv_cache_mib": None},
        {"vllm.num_engines": 3},
        {"vllm.tensor_parallel_size": 2},
        {"vllm.sync_backend": "nccl"},
        {"train.colocate_all": True, "pipeline.mode": "sync"},
    ],
)
def test_what_does_not_go_with_shared_gpus_is_refused(change):
    with pytest.raises(ConfigError) as error:
        load(None, BESIDE | change)
    (problem,) = error.value.problems
    assert (problem.code, problem.setting) == ("rank_and_engine_share_a_gpu", "train.share_gpus")
