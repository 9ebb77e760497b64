"""Every rule between settings is broken by a configuration here. Its code and setting are what a program sees."""

from __future__ import annotations

import pytest

from openrlhf_tir.config import rules
from openrlhf_tir.config.problems import Problems
from openrlhf_tir.config.setting import RULES
from openrlhf_tir.config.settings import attempt

PIPELINE = {"pipeline.mode": "pipeline"}
SEVERAL = {"rollout.batch_size": 8, "rollout.n_samples_per_prompt": 8, "train.batch_size": 32, "train.max_steps": 10}
"""Two updates of a batch."""
SHARED = {"ds.ring_attn_size": 2, "actor.num_gpus_per_node": 2, "ds.packing_samples": True}
EARLY = {"pipeline.early_accumulation": "on"}
TWO_ENVIRONMENTS = {"envs.calc.protocol": "plain", "envs.guess.protocol": "plain"}

BROKEN = [
    # setting to look at, code, configuration
    (
        "rollout.n_samples_per_prompt",
        "samples_divide_over_the_ranks",
        {"rollout.batch_size": 1, "rollout.n_samples_per_prompt": 7},
    ),
    ("rollout.min_valid", "a_group_can_be_valid", {"rollout.n_samples_per_prompt": 1, "rollout.min_valid": 2}),
    ("rollout.early_stop", "early_stop_knows_the_rewards", {"rollout.early_stop": True, "reward.name": "remote"}),
    ("rollout.top_p", "external_agents_sample_from_all_tokens", {"rollout.agent": "external", "rollout.top_k": 5}),
    (
        "rollout.vllm_generate_batch_size",
        "sync_samples_one_batch",
        {"pipeline.mode": "sync", "rollout.batch_size": 8, "rollout.vllm_generate_batch_size": 9},
    ),
    (
        "rollout.vllm_generate_batch_size",
        "sync_samples_one_batch",
        {"pipeline.mode": "one_step", "rollout.batch_size": 8, "rollout.vllm_generate_batch_size": 9},
    ),
    (
        "rollout.routing_replay",
        "routing_replay_gets_the_experts_of_tokens",
        {"rollout.routing_replay": True, "rollout.agent": "external"},
    ),
    ("vllm.sync_backend", "ipc_needs_a_shared_gpu", {"vllm.sync_backend": "ipc"}),
    ("ckpt.max_num", "resuming_needs_checkpoints", {"ckpt.max_num": 0, "train.resume": True}),
    (
        "algo.advantage.estimator",
        "critic_judges_one_chain_of_tokens",
        {"algo.advantage.estimator": "gae", "rollout.agent": "external"},
    ),
    ("algo.advantage.credit", "credit_by_turn_needs_rewards_of_turns", {"algo.advantage.credit": "turn"}),
    (
        "algo.advantage.credit",
        "credit_by_turn_fits_the_estimator",
        {"algo.advantage.credit": "turn", "reward.name": "env", "algo.advantage.estimator": "flash_reinforce"},
    ),
    (
        "algo.advantage.is_correction_level",
        "correction_has_a_ratio_to_correct",
        {"algo.advantage.is_correction_level": "token", "actor.pi_old": "engine"},
    ),
    ("algo.kl.target", "settings_of_kl_have_a_reference", {"algo.kl.target": 0.1}),
    ("ref.offload", "settings_of_kl_have_a_reference", {"ref.offload": True}),
    ("algo.kl.horizon", "horizon_has_a_target", {"algo.kl.init_coef": 0.1, "algo.kl.horizon": 100}),
    (
        "algo.kl.estimator",
        "kl_loss_has_a_gradient",
        {"algo.kl.init_coef": 0.1, "algo.kl.use_loss": True, "algo.kl.unbiased_gradient": False},
    ),
    (
        "data.prompt_probs",
        "every_data_set_has_a_probability",
        {"data.prompt_dataset": "a,b", "data.prompt_probs": [1.0]},
    ),
    ("data.max_len", "prompts_and_responses_fit", {"data.max_len": 100, "rollout.max_new_tokens": 100}),
    ("critic.model_name_or_path", "critic_is_used", {"critic.model_name_or_path": "org/reward"}),
    ("critic.freezing_steps", "frozen_updates_are_whole_batches", {"critic.freezing_steps": 5, "train.max_steps": 5}),
    ("filter.accuracy_range", "filters_go_with_the_reward", {"filter.accuracy_range": [0.5, 0.4]}),
    ("filter.names", "filters_go_with_the_reward", {"filter.names": ["zerotir"]}),
    ("filter.options", "options_are_those_of_a_filter", {"filter.options": {"max_truncate": 0.5}}),
    (
        "envs.guess.filter.options",
        "options_are_those_of_a_filter",
        {
            **TWO_ENVIRONMENTS,
            "envs.calc.filter.names": ["mine.py:keep"],
            "envs.guess.filter.options": {"max_truncate": 0.5},
        },
    ),
    (
        "envs.guess.filter.names",
        "filters_go_with_the_reward",
        {**TWO_ENVIRONMENTS, "envs.guess.filter.names": ["zerotir"]},
    ),
    (
        "pipeline.max_staleness",
        "staleness_covers_the_updates_of_a_batch",
        {**SEVERAL, **PIPELINE, "pipeline.max_staleness": 1},
    ),
    (
        "pipeline.push_every",
        "staleness_covers_the_updates_of_a_batch",
        {**SEVERAL, **PIPELINE, "pipeline.max_staleness": 3, "pipeline.push_every": 3},
    ),
    ("pipeline.depth", "depth_fits_batch_and_staleness", {**PIPELINE, "rollout.batch_size": 8, "pipeline.depth": 7}),
    ("pipeline.fill_batches", "first_batches_have_room", {"pipeline.mode": "sync", "pipeline.fill_batches": 2}),
    ("pipeline.fast_lane", "fast_lane_has_work_and_engines", {**PIPELINE, "pipeline.fast_lane": "auto"}),
    ("pipeline.early_accumulation", "a_part_of_a_batch_can_be_trained", {**EARLY, "pipeline.mode": "sync"}),
    (
        "pipeline.early_accumulation",
        "a_group_has_its_advantages",
        {**EARLY, **PIPELINE, "algo.advantage.estimator": "reinforce"},
    ),
    ("reward.remote_url", "remote_reward_and_its_url_go_together", {"reward.name": "remote"}),
    ("reward.model_name_or_path", "reward_model_is_loaded_and_used", {"reward.name": "model"}),
    ("reward.normalize_enable", "reward_model_is_loaded_and_used", {"reward.normalize_enable": True}),
    (
        "reward.overlong_buffer_len",
        "overlong_buffer_is_a_part_of_the_response",
        {"reward.overlong_buffer_len": 101, "rollout.max_new_tokens": 100},
    ),
    ("reward.clip_range", "clip_range_is_a_range", {"reward.clip_range": [1.0, -1.0]}),
    (
        "envs.guess.reward.remote_url",
        "remote_reward_and_its_url_go_together",
        {**TWO_ENVIRONMENTS, "envs.guess.reward.name": "remote"},
    ),
    (
        "envs.guess.reward.remote_url",
        "remote_reward_and_its_url_go_together",
        {**TWO_ENVIRONMENTS, "envs.guess.reward.name": "math", "envs.guess.reward.remote_url": "http://host:1"},
    ),
    (
        "envs.guess.reward.remote_url",
        "remote_reward_and_its_url_go_together",
        {
            **TWO_ENVIRONMENTS,
            "envs.calc.reward.remote_url": "http://host:1",
            "envs.guess.reward.name": "math",
            "envs.guess.reward.remote_url": "http://host:1",
        },
    ),
    (
        "reward.model_name_or_path",
        "reward_model_is_loaded_and_used",
        {**TWO_ENVIRONMENTS, "envs.guess.reward.name": "model"},
    ),
    (
        "envs.guess.reward.overlong_buffer_len",
        "overlong_buffer_is_a_part_of_the_response",
        {**TWO_ENVIRONMENTS, "envs.guess.reward.overlong_buffer_len": 101, "rollout.max_new_tokens": 100},
    ),
    (
        "envs.guess.reward.clip_range",
        "clip_range_is_a_range",
        {**TWO_ENVIRONMENTS, "envs.guess.reward.clip_range": [1.0, -1.0]},
    ),
    (
        "rollout.early_stop",
        "early_stop_knows_the_rewards",
        {**TWO_ENVIRONMENTS, "rollout.early_stop": True, "envs.guess.reward.remote_url": "http://host:1"},
    ),
    ("ds.ring_attn_size", "shared_sequences_are_supported", {**SHARED, "actor.num_gpus_per_node": 3}),
    ("ds.ring_attn_size", "critic_sees_whole_sequences", {**SHARED, "algo.advantage.estimator": "gae"}),
    ("ds.zpg", "secondary_partition_divides_the_ranks", {"ds.zpg": 2, "actor.num_gpus_per_node": 3}),
    (
        "train.batch_size",
        "updates_share_a_batch",
        {"rollout.batch_size": 8, "rollout.n_samples_per_prompt": 8, "train.batch_size": 33},
    ),
    ("train.max_steps", "updates_share_a_batch", {**SEVERAL, "train.max_steps": 9}),
    ("train.colocate_all", "rank_and_engine_take_turns", {"train.colocate_all": True, "pipeline.mode": "pipeline"}),
    (
        "train.colocate_all",
        "critic_can_be_moved",
        {"train.colocate_all": True, "algo.advantage.estimator": "gae", "critic.optim": "muon"},
    ),
    ("train.share_gpus", "rank_and_engine_share_a_gpu", {"train.share_gpus": True, "vllm.num_engines": 9}),
    (
        "train.agent_func_path",
        "one_agent_writes_the_responses",
        {"train.agent_func_path": "agent.py", "rollout.agent": "external"},
    ),
    ("train.save_before_s", "run_has_time_before_its_limit", {"train.save_before_s": 12.0, "train.stop_grace_s": 2.0}),
    # environments
    ("envs.guess.share", "environment", {**TWO_ENVIRONMENTS, "envs.calc.share": 1.0}),
    (
        "envs.guess.server",
        "environment",
        {**TWO_ENVIRONMENTS, "envs.calc.url": "http://host:1", "envs.guess.url": "http://host:1"},
    ),
    ("env.file", "environment", {"env.file": "mine.py", "env.url": "http://host:1"}),
    ("env.options", "environment", {"env.name": "functions", "reward.name": "env"}),
    ("env.options", "environment", {"env.name": "bfcl", "reward.weights": {"env": 1.0, "artist": 0.5}}),
    (
        "envs.desk.options",
        "environment",
        {"envs.desk.server": "functions", "envs.desk.reward.name": "env", "envs.calc.server": "echo"},
    ),
]  # fmt: skip
BROKEN_IN_FINE_TUNING = [
    ("ckpt.max_num", "fine_tuning_keeps_a_checkpoint", {"ckpt.max_num": 0}),
    ("sft.dataset", "there_are_rows_to_learn_from", {"sft.dataset": ""}),
    ("sft.batch_size", "every_rank_has_a_row_of_an_update", {"sft.batch_size": 1, "actor.num_gpus_per_node": 2}),
    ("sft.output_key", "responses_have_a_column_of_prompts", {"sft.output_key": "answer"}),
    (
        "sft.max_len",
        "longest_row_fits_into_a_forward_pass",
        {"sft.max_len": 2000, "train.max_tokens_per_gpu": 1000},
    ),
    ("ds.ring_attn_size", "shared_sequences_are_supported", {**SHARED, "actor.num_gpus_per_node": 3}),
    ("ds.zpg", "secondary_partition_divides_the_ranks", {"ds.zpg": 2, "actor.num_gpus_per_node": 3}),
    ("train.save_before_s", "run_has_time_before_its_limit", {"train.save_before_s": 12.0, "train.stop_grace_s": 2.0}),
]


def problems_of(overrides: dict, violations) -> set[tuple[str | None, str]]:
    problems = Problems()
    cfg = attempt(None, {"actor.num_gpus_per_node": 2, **overrides}, problems, lambda c: ())
    assert not problems, problems.lines
    return {(problem.setting, problem.code) for problem in violations(cfg)}


@pytest.mark.parametrize(("setting", "code", "overrides"), BROKEN)
def test_a_broken_rule_of_training_gives_its_code_and_the_setting_to_look_at(setting, code, overrides):
    assert (setting, code) in problems_of(overrides, rules.violations)


@pytest.mark.parametrize(("setting", "code", "overrides"), BROKEN_IN_FINE_TUNING)
def test_a_broken_rule_of_fine_tuning_gives_its_code_and_the_setting_to_look_at(setting, code, overrides):
    assert (setting, code) in problems_of(overrides, rules.violations_of_fine_tuning)


def test_every_rule_is_broken_by_one_of_these_configurations():
    of_training = {code for _, code, _ in BROKEN}
    of_fine_tuning = {code for _, code, _ in BROKEN_IN_FINE_TUNING}
    assert {rule.name for rule in RULES if "train" in rule.commands} == of_training - {"environment"}
    assert {rule.name for rule in RULES if "sft" in rule.commands} == of_fine_tuning


def test_options_of_all_environments_are_for_the_filter_of_any_of_them():
    overrides = {**TWO_ENVIRONMENTS, "filter.options": {"mine": 1}, "envs.calc.filter.names": ["mine.py:keep"]}
    assert not problems_of(overrides, rules.violations)


@pytest.mark.parametrize(
    "overrides",
    [
        {"env.protocol": "tool", "env.options": {"user": True}},
        {"env.protocol": "mine.py:Mine"},
        {"rollout.agent": "external"},
        {"reward.name": "artist"},
        {"env.name": "guess", "env.file": "guess.py"},
    ],
    ids=["user", "own protocol", "agent", "another reward", "own environment"],
)
def test_an_environment_that_rewards_messages_is_accepted_where_there_are_some(overrides):
    desk = {"env.name": "functions", "reward.name": "env", **overrides}
    assert ("env.options", "environment") not in problems_of(desk, rules.violations)


def test_the_defaults_break_no_rule_of_training():
    assert problems_of({}, rules.violations) == set()


def test_a_rule_about_a_setting_whose_value_was_refused_is_not_reported():
    """It would be about the default that took the value's place."""
    problems = Problems()
    attempt(
        None, {"rollout.n_samples_per_prompt": "many", "rollout.batch_size": 1, "actor.num_gpus_per_node": 3}, problems
    )
    assert len(problems.lines) == 1
