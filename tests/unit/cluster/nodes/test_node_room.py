"""A node that is too small for the learner ranks that it got is refused before one of them loads the model."""

from __future__ import annotations

import math

import pytest

from openrlhf_tir.cluster.node_room import NodeReport, check_room
from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.memory.host_plan import KEPT_FREE, host_plan
from openrlhf_tir.memory.memory_plan import memory_plan
from openrlhf_tir.simulation.virtual_loop import run
from tests.unit.memory.test_memory_plan import SMALL, model


def two_ranks(tmp_path, **sections) -> Config:
    actor = {"model_name_or_path": model(tmp_path, SMALL), "num_nodes": 2, "num_gpus_per_node": 1}
    return Config(actor=actor, run_dir=tmp_path / "run", **sections)


def needed(cfg: Config) -> int:
    """Return the least host memory, in bytes, of a node that holds one rank without a GPU."""
    plan = host_plan(cfg, gpus=False)
    return math.ceil((plan.rank_bytes + plan.checkpoint) / (1 - KEPT_FREE)) + 1


def test_a_node_needs_room_for_each_of_the_ranks_that_it_got(tmp_path):
    cfg = two_ranks(tmp_path)
    enough = needed(cfg)
    apart = [NodeReport(address, 0.0, enough, None) for address in ("10.0.0.1", "10.0.0.2")]
    check_room(cfg, apart, gpus=False)
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1"):
        check_room(cfg, [apart[0], apart[0]], gpus=False)
    with pytest.raises(ConfigError, match=r"10\.0\.0\.2"):
        check_room(cfg, [apart[0], apart[1]._replace(memory=enough // 2)], gpus=False)


def test_the_smallest_gpu_of_each_node_counts_and_a_gpu_that_nobody_can_ask_does_not(tmp_path):
    cfg = two_ranks(tmp_path)
    enough = memory_plan(cfg, 1 << 40).learner_gpu
    large = NodeReport("10.0.0.1", 0.0, 1 << 40, enough)
    check_room(cfg, [large, large._replace(address="10.0.0.2")], gpus=True)
    check_room(cfg, [large, large._replace(address="10.0.0.2", gpu=None)], gpus=True)
    with pytest.raises(ConfigError, match=r"10\.0\.0\.2"):
        check_room(cfg, [large, large._replace(address="10.0.0.2", gpu=enough - 1)], gpus=True)


def test_a_model_of_unknown_size_is_not_judged(tmp_path):
    cfg = Config(actor={"model_name_or_path": str(tmp_path / "none")})
    check_room(cfg, [NodeReport("10.0.0.1", 0.0, 1, 1)], gpus=True)


@pytest.mark.slow  # importing ray
def test_ranks_on_a_node_that_is_too_small_load_nothing_and_leave_their_room(ray, tmp_path):
    from openrlhf_tir.cluster.learner_group import LearnerGroup

    cfg = two_ranks(tmp_path)
    started = []

    async def check_node(mark, theirs):
        return NodeReport("10.0.0.2", 0.0, needed(cfg) // 2, None)

    async def start(*args):
        started.append(args)

    def prepare(actor):
        actor.do_check_node = check_node
        actor.do_start = start

    async def scenario():
        with pytest.raises(ConfigError, match=r"10\.0\.0\.2"):
            await LearnerGroup.start(cfg)

    ray.prepare = prepare
    run(scenario())
    assert [g.removed for g in ray.groups] == [True]
    assert not started
