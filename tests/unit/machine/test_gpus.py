"""Which of a node's GPUs a process may use, as Slurm, users and MIG say it in CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import pytest

from openrlhf_tir.cli.checks.host import Machine
from openrlhf_tir.config import Config
from openrlhf_tir.config.ranks import ranks_of_machine
from openrlhf_tir.machine import gpus
from openrlhf_tir.machine.gpus import gpu_memory, usable_gpus


@pytest.fixture
def node(monkeypatch):
    """A node of 8 GPUs, the first of which is the smallest."""
    monkeypatch.setattr(gpus, "gpu_count", lambda: 8)
    monkeypatch.setattr(gpus, "nvidia_smi", lambda *arguments, **_: "\n".join(["40960", *["81920"] * 7]))
    return monkeypatch


@pytest.mark.parametrize(
    ("listed", "usable"),
    [
        ("0,1", 2),
        ("GPU-5c1fa6d2-1,GPU-5c1fa6d2-2, GPU-5c1fa6d2-3", 3),
        ("MIG-8f2b-1", 1),
        ("", 0),
        ("-1", 0),
        ("2,-1,3", 1),
        ("NoDevFiles", 0),
        ("0,1,2,3,4,5,6,7,8", 8),
    ],
)
def test_a_machine_has_the_gpus_that_a_ray_started_there_has(node, listed, usable):
    node.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert usable_gpus() == Machine().gpus == usable


def test_a_machine_without_a_list_has_all_of_its_gpus(node):
    node.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert usable_gpus() == 8


def test_a_job_with_four_of_a_nodes_gpus_gets_as_many_learner_ranks_as_they_leave(node):
    node.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    cfg = Config(vllm={"num_engines": 2})
    assert ranks_of_machine(cfg, environ={}).actor.num_gpus_per_node == 2


@pytest.mark.parametrize(("listed", "mib"), [("1,2", 81920), ("", None), ("NoDevFiles", None), ("MIG-8f2b-1", None)])
def test_the_memory_of_a_part_of_a_card_or_of_none_is_not_that_of_the_nodes_cards(node, listed, mib):
    node.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert gpu_memory() == (mib and mib << 20)
