"""Threads of a learner rank and of an engine on a node without GPUs."""

from __future__ import annotations

import json

import pytest

from openrlhf_tir.config import fine_tuning
from openrlhf_tir.config.sections.pipeline import ALONE
from openrlhf_tir.config.settings import load
from openrlhf_tir.memory.threads import Threads, compute_threads

SMOLLM2 = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152,
    "tie_word_embeddings": True,
}  # fmt: skip
TOY = SMOLLM2 | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 128}


def config(tmp_path, model: dict, mode: str, ranks: int = 1, engines: int = 1):
    (tmp_path / "config.json").write_text(json.dumps(model))
    settings = {
        "actor.model_name_or_path": str(tmp_path),
        "actor.num_gpus_per_node": ranks,
        "vllm.num_engines": engines,
        "pipeline.mode": mode,
    }
    return load("quickstart_cpu", settings)


@pytest.mark.parametrize(
    ("mode", "ranks", "engines", "cores", "threads"),
    [
        ("sync", 1, 1, 2, Threads(2, 2)),
        ("sync", 2, 1, 2, Threads(1, 2)),
        ("pipeline", 1, 1, 2, Threads(1, 1)),
        ("pipeline", 1, 1, 4, Threads(2, 2)),
        ("pipeline", 2, 2, 2, Threads(1, 1)),
        ("sync", 0, 1, 2, Threads(2, 2)),  # 0 ranks of a machine without GPUs are one process
        ("pipeline", 0, 1, 2, Threads(1, 1)),
    ],
)
def test_learner_and_engine_share_the_cores_unless_they_work_in_turns(tmp_path, mode, ranks, engines, cores, threads):
    cfg = config(tmp_path, SMOLLM2, mode, ranks, engines)
    assert compute_threads(cfg, cores, {}) == threads


@pytest.mark.parametrize(("mode", "threads"), [("sync", Threads(2, 1)), ("pipeline", Threads(1, 1))])
def test_reward_models_work_beside_the_engines(tmp_path, mode, threads):
    cfg = config(tmp_path, SMOLLM2, mode)
    reward = cfg.reward.model_copy(update={"model_name_or_path": str(tmp_path), "model_replicas": 1})
    assert compute_threads(cfg.model_copy(update={"reward": reward}), 2, {}) == threads


def test_the_workers_of_an_engine_and_the_engines_of_other_nodes_have_their_share(tmp_path):
    cfg = config(tmp_path, SMOLLM2, "sync")
    workers = cfg.model_copy(update={"vllm": cfg.vllm.model_copy(update={"tensor_parallel_size": 2})})
    assert compute_threads(workers, 2, {}) == Threads(2, 1)
    two_nodes = {"actor": cfg.actor.model_copy(update={"num_nodes": 2})}
    two_nodes["vllm"] = cfg.vllm.model_copy(update={"num_engines": 2})
    assert compute_threads(cfg.model_copy(update=two_nodes), 2, {}) == Threads(2, 2)


def test_learner_ranks_or_engines_that_are_started_alone_have_all_cores(tmp_path):
    """Whatever the recipe says of the others."""
    cfg = config(tmp_path, SMOLLM2, "pipeline", ranks=1, engines=4)
    assert compute_threads(fine_tuning.alone(cfg), 2, {}).learner == 2
    cfg = config(tmp_path, SMOLLM2, "pipeline", ranks=4, engines=1)
    assert compute_threads(cfg.model_copy(update={"pipeline": ALONE}), 2, {}).engine == 2


def test_a_model_of_134_million_parameters_has_two_threads_at_most_and_a_toy_one(tmp_path):
    assert compute_threads(config(tmp_path, SMOLLM2, "sync"), 64, {}) == Threads(2, 2)
    assert compute_threads(config(tmp_path, TOY, "sync"), 64, {}) == Threads(1, 1)


def test_more_threads_that_the_user_asks_for_count(tmp_path):
    cfg = config(tmp_path, TOY, "pipeline")
    assert compute_threads(cfg, 2, {"OMP_NUM_THREADS": "4"}) == Threads(4, 4)
    assert compute_threads(cfg, 2, {"OMP_NUM_THREADS": "1"}) == Threads(1, 1)
