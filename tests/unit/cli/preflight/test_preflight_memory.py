"""A run that this machine cannot hold is refused before anything starts; what is tight is said."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from benchmarks.learner.memory import SMOLLM2
from openrlhf_tir.cli.checks.host import check_memory
from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.memory.host_plan import host_plan
from tests.unit.memory.test_host_plan import small
from tests.unit.memory.test_memory_plan import SMALL, model

from .runs import CPU, GPUS

GIB = 1 << 30


@pytest.fixture
def cfg(tmp_path, monkeypatch) -> Config:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return small(tmp_path)


def test_a_machine_with_too_little_memory_is_refused_with_need_and_settings(cfg):
    need = host_plan(cfg, gpus=False).total
    with pytest.raises(ConfigError) as told:
        check_memory(cfg, replace(CPU, memory=(0, need)))  # a twentieth must stay free
    assert "actor.num_gpus_per_node" in str(told.value) and "vllm.num_engines" in str(told.value)
    assert len(check_memory(cfg, replace(CPU, memory=(0, need * 20 // 19 + 1)))) == 1


def test_a_command_without_a_learner_needs_neither_its_memory_nor_that_of_pushes(cfg):
    plan = host_plan(cfg, gpus=False)
    need = plan.engines * plan.engine_bytes + plan.others
    assert plan.pushes > 2, "what is too much below is the pushes' share"
    enough = replace(CPU, memory=(0, need * 20 // 19 + 1))
    assert len(check_memory(cfg, enough, learner=False)) == 1
    with pytest.raises(ConfigError):
        check_memory(cfg, enough)


@pytest.mark.parametrize("learner", [True, False])
def test_reward_models_count_with_and_without_a_learner(tmp_path, monkeypatch, learner):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "reward").mkdir()
    reward = {"name": "model", "model_name_or_path": model(tmp_path / "reward", SMALL), "model_replicas": 3}
    plan = host_plan(small(tmp_path, reward=reward), gpus=False)
    need = plan.total if learner else plan.engines * plan.engine_bytes + plan.others + 3 * plan.reward_bytes
    enough = replace(CPU, memory=(0, need * 20 // 19 + 1))
    cfg = small(tmp_path, reward=reward)
    told = check_memory(cfg, enough, learner=learner)
    assert any(re.match(f"{3 + 1 + learner} .* 2 ", fact) for fact in told), "processes and cores"
    with pytest.raises(ConfigError, match=r"\b3 .* reward\.model_replicas"):
        check_memory(cfg, replace(CPU, memory=(0, enough.memory[1] - (1 << 20))), learner=learner)


def test_memory_that_others_hold_now_is_said_and_refuses_nothing(cfg):
    free = check_memory(cfg, replace(CPU, memory=(0, 24 * GIB)))
    held = check_memory(cfg, replace(CPU, memory=(22 * GIB, 24 * GIB)))
    assert len(held) == len(free) + 1


def test_more_processes_than_cores_are_said(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    several = small(tmp_path, vllm={"num_engines": 3})
    two, four = ([fact for fact in check_memory(several, replace(CPU, cpus=cpus)) if fact[0] == "4"] for cpus in (2, 4))
    assert len(two) == 1 and " 2 " in two[0] and not four


@pytest.mark.parametrize(("mode", "of_rank_and_engine"), [("sync", ["12", "4"]), ("pipeline", ["3", "3"])])
def test_threads_are_told_of_the_processes_that_are_started(tmp_path, monkeypatch, mode, of_rank_and_engine):
    """Of 12 cores a rank beside three engines has 3, as each engine; one that works while they wait has all."""
    for variable in ("RAY_ADDRESS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "large").mkdir()
    actor = {"model_name_or_path": model(tmp_path / "large", SMOLLM2 | {"num_hidden_layers": 300})}
    cfg = small(tmp_path, actor=actor, vllm={"num_engines": 3}, pipeline={"mode": mode})
    machine = replace(CPU, cpus=12, memory=(0, 1 << 40))
    told = [re.findall(r"\d+", check_memory(cfg, machine, learner=learner)[-1]) for learner in (True, False)]
    assert told == [of_rank_and_engine, ["4"]]


def test_a_card_that_is_too_small_is_refused(cfg):
    assert check_memory(cfg, GPUS)
    with pytest.raises(ConfigError, match=r"GPU, .*2\.00 GiB"):
        check_memory(cfg, replace(GPUS, gpu_bytes=2 * GIB))


def test_eight_ranks_of_a_real_model_on_two_cores_are_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "smollm2").mkdir()
    actor = {"model_name_or_path": model(tmp_path / "smollm2", SMOLLM2), "num_gpus_per_node": 8}
    with pytest.raises(ConfigError, match=r"\b8 .*actor\.num_gpus_per_node"):
        check_memory(small(tmp_path, actor=actor, train={"max_tokens_per_gpu": 4096, "micro_batch_size": 64}), CPU)


def test_on_a_cluster_the_drivers_machine_decides_nothing(cfg, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert check_memory(cfg, replace(CPU, memory=(0, GIB))) == []
