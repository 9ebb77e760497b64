"""A node that is too small for the learner ranks that it got is refused before one of them loads the model."""

from __future__ import annotations

import math

import pytest

from openrlhf_tir.cluster.node_room import NodeReport, check_room
from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.machine.gpus import smallest
from openrlhf_tir.memory.host_plan import KEPT_FREE, host_plan
from openrlhf_tir.memory.memory_plan import memory_plan
from openrlhf_tir.simulation.virtual_loop import run
from tests.unit.memory.test_memory_plan import SMALL, N, model


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


def test_what_was_pushed_last_needs_room_on_the_node_of_rank_0_alone(tmp_path):
    cfg = two_ranks(tmp_path, vllm={"sync_backend": "delta"})
    enough = needed(cfg)
    last_push = math.ceil(2 * N / (1 - KEPT_FREE))
    first = NodeReport("10.0.0.1", 0.0, enough + last_push, None)
    check_room(cfg, [first, NodeReport("10.0.0.2", 0.0, enough, None)], gpus=False)
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1"):
        check_room(cfg, [first._replace(memory=enough), first._replace(address="10.0.0.2")], gpus=False)


def test_a_node_is_judged_with_its_own_kernels_and_not_with_the_controllers(tmp_path):
    train = {"max_tokens_per_gpu": 1 << 20}
    cfg = two_ranks(tmp_path, train=train)
    enough = memory_plan(two_ranks(tmp_path, train=train, ds={"use_liger_kernel": True}), 1 << 40).learner_gpu
    node = NodeReport("10.0.0.1", 0.0, 1 << 40, enough, has_liger=True)
    check_room(cfg, [node, node], gpus=True)
    with pytest.raises(ConfigError, match="activations"):
        check_room(cfg, [node._replace(has_liger=False)] * 2, gpus=True)


@pytest.mark.parametrize(
    ("sizes", "visible", "least"),
    [([80, 80], 1, 80), ([8, 80, 80], 2, 80), ([8, 80, 80], 3, 8), ([8, 80], 0, 8), ([80], 7, 80)],
)
def test_a_process_with_some_of_a_nodes_unequal_gpus_may_have_the_largest(sizes, visible, least):
    assert smallest(sizes, visible) == least


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
