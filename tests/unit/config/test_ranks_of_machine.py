"""How many learner ranks a configuration has that does not say it: what the machine has."""

from __future__ import annotations

import pytest

from openrlhf_tir.config import Config, fine_tuning
from openrlhf_tir.config.flags import Parser, add_config_flags, config_from
from openrlhf_tir.config.problems import Problems
from openrlhf_tir.config.ranks import ranks_of_machine


@pytest.mark.parametrize(
    ("gpus", "settings", "ranks"),
    [
        (0, {}, 1),
        (0, {"vllm": {"num_engines": 3}}, 1),
        (8, {}, 4),  # 7 are left, and 128 prompts * 16 samples divide over 4
        (8, {"rollout": {"batch_size": 14, "n_samples_per_prompt": 4}}, 7),
        (8, {"rollout": {"batch_size": 14, "n_samples_per_prompt": 4}, "ds": {"zpg": 2}}, 4),
        (8, {"ds": {"ring_attn_size": 3}}, 6),  # the two rings have 1024 samples each
        (9, {"train": {"batch_size": 4}}, 4),  # each rank has a sample of every update
        (8, {"vllm": {"num_engines": 2, "tensor_parallel_size": 2}}, 4),
        (4, {"vllm": {"num_engines": 1}, "reward": {"model_name_or_path": "judge", "model_replicas": 1}}, 2),
        (4, {"vllm": {"num_engines": 4}, "train": {"colocate_all": True}}, 4),
        (1, {"vllm": {"num_engines": 2}}, 1),  # too few: the check of GPUs refuses it
    ],
)
def test_unset_ranks_are_the_gpus_that_engines_and_reward_models_leave(gpus, settings, ranks):
    cfg = Config.model_construct(**{name: getattr(Config(), name) for name in Config.model_fields})
    for section, values in settings.items():
        cfg = cfg.model_copy(update={section: getattr(cfg, section).model_copy(update=values)})
    assert ranks_of_machine(cfg, gpus=gpus, environ={}).actor.num_gpus_per_node == ranks


@pytest.mark.parametrize(
    ("gpus", "settings", "ranks"),
    [
        (0, {}, 1),
        (8, {"sft": {"batch_size": 16}}, 8),
        (8, {"sft": {"batch_size": 12}}, 6),
        (8, {"sft": {"batch_size": 16}, "rollout": {"batch_size": 3, "n_samples_per_prompt": 1}}, 8),
        (8, {"sft": {"batch_size": 16}, "vllm": {"num_engines": 4}}, 8),
        (4, {"sft": {"batch_size": 16}, "reward": {"model_name_or_path": "judge", "model_replicas": 1}}, 4),
        (8, {"sft": {"batch_size": 2}, "ds": {"ring_attn_size": 4}}, 8),  # two rings of four, a row each
    ],
)
def test_a_fine_tuning_has_all_gpus_over_which_its_own_batch_divides(gpus, settings, ranks):
    cfg = Config.model_construct(**{name: getattr(Config(), name) for name in Config.model_fields})
    for section, values in settings.items():
        cfg = cfg.model_copy(update={section: getattr(cfg, section).model_copy(update=values)})
    assert ranks_of_machine(cfg, fine_tuning=True, gpus=gpus, environ={}).actor.num_gpus_per_node == ranks


def test_the_command_of_a_fine_tuning_asks_for_the_ranks_of_one(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("openrlhf_tir.config.ranks.usable_gpus", lambda: 8)
    parser = Parser()
    fine_tuning.add_flags(parser)
    args, args.unknown = parser.parse_known_args(["--sft.batch_size", "16"])
    assert fine_tuning.config_of(args, Problems()).actor.world_size == 8


def test_ranks_that_are_set_stay_whatever_the_machine_has():
    for said in (0, 2, 8):
        cfg = Config(actor={"num_gpus_per_node": said})
        assert ranks_of_machine(cfg, gpus=0, environ={}).actor.num_gpus_per_node == said


def test_on_a_cluster_the_machine_of_the_driver_decides_nothing():
    default = Config().actor.num_gpus_per_node
    assert ranks_of_machine(Config(), gpus=0, environ={"RAY_ADDRESS": "auto"}).actor.num_gpus_per_node == default
    several = Config(actor={"num_nodes": 2})
    assert ranks_of_machine(several, gpus=0, environ={}).actor.num_gpus_per_node == default


def from_flags(*words: str) -> Config:
    parser = Parser()
    add_config_flags(parser)
    args, args.unknown = parser.parse_known_args(words)
    return config_from(args, Problems())


@pytest.mark.parametrize(("gpus", "ranks"), [(0, 1), (3, 2)])
def test_a_command_has_the_ranks_of_its_machine_unless_its_flags_say_how_many(monkeypatch, gpus, ranks):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("openrlhf_tir.config.ranks.usable_gpus", lambda: gpus)
    assert from_flags().actor.world_size == ranks
    assert from_flags("--actor.num_gpus_per_node", "4").actor.world_size == 4
