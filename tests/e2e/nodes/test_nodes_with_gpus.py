"""Ray's own placement on two nodes: a head without GPUs and a node that says that it has four. No GPU is there: nothing
is loaded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from openrlhf_tir.cluster.engine_handle import spawn
from openrlhf_tir.cluster.nodes import has_gpus, nodes, placement
from openrlhf_tir.cluster.ray_session import ray_session
from openrlhf_tir.config import Config

from ..support.engine_actor import GpuActor

ROOT = Path(__file__).parents[3]


@pytest.fixture
def cluster(monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 0})
    cluster.add_node(num_cpus=8, num_gpus=4)
    cluster.wait_for_nodes()
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield cluster
    cluster.shutdown()


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_an_engine_on_two_gpus_sees_two_though_the_driver_has_none(cluster, tmp_path, capsys):
    cfg = Config(
        run_dir=tmp_path / "run", vllm={"num_engines": 2, "tensor_parallel_size": 2}, actor={"num_gpus_per_node": 1}
    )
    with ray_session(cfg):
        assert has_gpus() and sorted(node.gpus for node in nodes()) == [0, 4]
        assert placement(cfg, nodes())[1] == {"learner rank 0": 1}
        members = [await spawn(GpuActor, i, cfg, {}, lambda member, why: None) for i in range(2)]
        seen = [member.url.split(",") for member in members]
        assert sorted(device for devices in seen for device in devices) == ["0", "1", "2", "3"]
        assert len(re.findall(r" [01]: \d+\.\d+\.\d+\.\d+", capsys.readouterr().out)) == 2
        for member in members:
            await member.stop()
