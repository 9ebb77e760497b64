"""Nodes with other packages than the controller's are found out before a model loads, by node and value."""

from __future__ import annotations

import re
import time

import pytest

from openrlhf_tir.cluster.node_room import NodeReport
from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.simulation.virtual_loop import run

from ..fake_ray import Ray, node, spawned

pytestmark = pytest.mark.slow  # importing ray


def test_what_differs_is_named_with_node_and_both_versions():
    from openrlhf_tir.cluster.versions import compare, installed

    here = installed()
    compare(here, "rollout-0", "10.0.0.2")
    compare({**here, "vllm": "none"}, "rollout-0", "10.0.0.2")  # a head on which no engine runs
    with pytest.raises(ConfigError) as refused:
        compare({**here, "torch": "1.0", "ray": "1.1"}, "learner rank 3", "10.0.0.2")
    assert re.search(
        rf"learner rank 3 .*10\.0\.0\.2 .*: torch {here['torch']} \(.*: 1\.0\), ray {here['ray']} \(.*: 1\.1\)\.",
        str(refused.value),
    )


def test_builds_for_cpu_and_gpu_are_one_version():
    from openrlhf_tir.cluster.versions import installed

    assert "+" not in installed()["torch"]


@pytest.mark.parametrize("package", ["openrlhf_tir", "miniatures"])
def test_another_checkout_is_another_version(package, tmp_path):
    from openrlhf_tir.cluster.versions import _ours

    source = tmp_path / package / "rewards" / "own.py"
    source.parent.mkdir(parents=True)
    source.write_text("x = 1\n")
    before = _ours(tmp_path)
    source.write_text("x = 2\n")
    assert _ours(tmp_path) != before


def test_engines_and_ranks_are_asked_on_several_nodes_and_not_on_one(ray: Ray, monkeypatch):
    from openrlhf_tir.cluster import versions
    from openrlhf_tir.cluster.learner_group import LearnerGroup

    asked = []

    async def check_node(mark, theirs):
        asked.append(theirs)
        return NodeReport("10.0.0.1", time.time(), 1 << 40, None)

    ray.prepare = lambda actor: setattr(actor, "do_check_node", check_node)
    monkeypatch.setattr(versions, "installed", lambda: {"torch": "2"})
    run(spawned())
    ray.nodes.append(node("10.0.0.2", CPU=4.0))
    run(spawned())
    run(LearnerGroup.start(Config(actor={"num_gpus_per_node": 1})))
    assert asked == [{}, {"torch": "2"}, {"torch": "2"}]


def test_the_node_of_a_rank_whose_clock_is_off_is_named(ray: Ray, caplog):
    from openrlhf_tir.cluster.learner_group import LearnerGroup

    async def check_node(mark, theirs):
        return NodeReport("10.0.0.2", time.time() - 7200, 1 << 40, None)

    ray.prepare = lambda actor: setattr(actor, "do_check_node", check_node)
    run(LearnerGroup.start(Config(actor={"num_gpus_per_node": 1})))
    assert re.search(r"10\.0\.0\.2 \w+ 7200 s behind ", caplog.text)
