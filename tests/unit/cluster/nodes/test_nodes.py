"""GPUs are the cluster's, not the driver's: what engines and ranks reserve, and the plan said before all else."""

from __future__ import annotations

import asyncio
import re

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import ClusterFull, ConfigError
from openrlhf_tir.simulation.virtual_loop import run

from ..fake_ray import Ray, node, spawned

pytestmark = pytest.mark.slow  # importing ray

HEAD = node("10.0.0.1", CPU=8.0)


def eight(address: str) -> dict:
    return node(address, CPU=64.0, GPU=8.0)


def test_an_engine_on_two_gpus_has_both_in_one_bundle_and_as_its_own(ray: Ray):
    """With none of its own Ray blanks CUDA_VISIBLE_DEVICES, and vLLM finds no GPU for its worker processes."""
    ray.nodes = [HEAD, eight("10.0.0.2")]
    run(spawned(Config(vllm={"tensor_parallel_size": 2})))
    (group,), (asked,) = ray.groups, ray.asked
    assert (group.bundles, group.strategy) == ([{"CPU": 1.0, "GPU": 2.0}], "STRICT_PACK")
    assert (asked["num_cpus"], asked["num_gpus"]) == (1.0, 2.0)
    assert "CUDA_VISIBLE_DEVICES" not in asked["runtime_env"]["env_vars"]


def test_one_that_no_node_can_hold_has_a_bundle_per_gpu_for_workers_that_ray_starts(ray: Ray):
    ray.nodes = [eight("10.0.0.2"), eight("10.0.0.3")]
    run(spawned(Config(vllm={"tensor_parallel_size": 8, "engine_args": {"pipeline_parallel_size": 2}})))
    (group,), (asked,) = ray.groups, ray.asked
    assert (group.bundles, group.strategy) == ([{"CPU": 1.0, "GPU": 1.0}] * 16, "PACK")
    assert asked["num_gpus"] == 0.0


def test_on_cpu_the_workers_of_an_engine_are_reserved_together(ray: Ray):
    run(spawned(Config(vllm={"tensor_parallel_size": 2})))
    assert ray.groups[0].bundles == [{"CPU": 2.0}] and ray.asked[0]["num_gpus"] == 0.0
    assert ray.asked[0]["runtime_env"]["env_vars"]["DS_ACCELERATOR"] == "cpu"


@pytest.mark.parametrize(("resources", "gpus"), [({"CPU": 8.0}, 0.0), ({"CPU": 8.0, "GPU": 2.0}, 1.0)])
def test_learner_ranks_take_gpus_where_the_cluster_has_them_whatever_the_driver_has(ray: Ray, resources, gpus):
    from openrlhf_tir.cluster.learner_group import LearnerGroup

    ray.nodes = [HEAD, node("10.0.0.2", **resources)]
    run(LearnerGroup.start(Config(actor={"num_gpus_per_node": 2})))
    assert ray.asked[0]["num_gpus"] == gpus and ray.groups[0].bundles[0].get("GPU", 0.0) == gpus


def test_learner_ranks_of_two_nodes_are_on_two_and_neighbours_are_on_one(ray: Ray):
    from openrlhf_tir.cluster.learner_group import LearnerGroup
    from openrlhf_tir.cluster.nodes import nodes, placement
    from openrlhf_tir.cluster.ray_session import by_node

    ray.nodes = [HEAD, eight("10.0.0.2"), eight("10.0.0.3")]
    cfg = Config(actor={"num_nodes": 2, "num_gpus_per_node": 4})
    run(LearnerGroup.start(cfg))
    assert (ray.groups[0].bundles, ray.groups[0].strategy) == ([{"CPU": 4.0, "GPU": 4.0}] * 2, "SPREAD")
    assert [actor.index for actor in ray.actors] == list(range(8)) and len(ray.asked) == 8
    placed, missing = placement(cfg, nodes())
    assert placed == {
        "10.0.0.1": {},
        "10.0.0.2": {"engine 0": 1, **{f"learner rank {number}": 1 for number in range(4)}},
        "10.0.0.3": {f"learner rank {number}": 1 for number in range(4, 8)},
    }
    assert not missing
    run(LearnerGroup.start(Config(actor={"num_nodes": 2, "num_gpus_per_node": 16})))
    scattered = ray.groups[-1]
    assert (scattered.bundles, scattered.strategy) == ([{"CPU": 1.0, "GPU": 1.0}] * 32, "PACK"), (
        "no node has room for 16"
    )
    scattered.on = {0: "b", 1: "a", 2: "b", 3: "a"}
    assert by_node(scattered) == [0, 2, 1, 3]


def test_an_engine_that_is_replaced_while_the_gpus_are_lost_does_not_start_on_cpu(ray: Ray):
    ray.nodes = [HEAD, eight("10.0.0.2")]
    run(spawned())
    ray.nodes = [HEAD]
    run(spawned())
    assert [group.bundles for group in ray.groups] == [[{"CPU": 1.0, "GPU": 1.0}]] * 2


def test_where_a_reservation_is_is_said(ray: Ray, capsys):
    ray.nodes = [HEAD, eight("10.0.0.2")]
    run(spawned())
    assert re.search(r"\b0: 10\.0\.0\.1\n", capsys.readouterr().out)


def test_the_plan_names_every_rank_and_engine_with_its_node(ray: Ray):
    from openrlhf_tir.cluster.nodes import nodes, placement, plan

    cfg = Config(vllm={"num_engines": 2, "tensor_parallel_size": 2}, actor={"num_gpus_per_node": 4})
    ray.nodes = [HEAD, node("10.0.0.2", CPU=64.0, GPU=4.0), node("10.0.0.3", CPU=64.0, GPU=4.0)]
    placed, missing = placement(cfg, nodes())
    assert placed == {
        "10.0.0.1": {},
        "10.0.0.2": {"engine 0": 2, "engine 1": 2},
        "10.0.0.3": {f"learner rank {number}": 1 for number in range(4)},
    }
    assert not missing
    for line, there in zip(plan(cfg, nodes()), nodes(), strict=True):
        assert str(there) in line and all(name in line for name in placed[there.address])


def test_a_cluster_that_is_too_small_is_told_what_is_missing_and_what_each_node_has_left(ray: Ray):
    from openrlhf_tir.cluster.nodes import nodes, placement, plan

    cfg = Config(vllm={"num_engines": 3, "tensor_parallel_size": 3}, actor={"num_gpus_per_node": 1})
    ray.nodes = [node("a", CPU=8.0, GPU=4.0), node("b", CPU=8.0, GPU=4.0)]
    assert placement(cfg, nodes())[1] == {"engine 2": 3}
    assert re.search(r"\(a \w+ 0 \w+, b \w+ 1 \w+\).*vllm\.num_engines", plan(cfg, nodes())[-1])


def test_a_recipe_for_gpus_does_not_start_on_a_cluster_without_one(ray: Ray):
    from openrlhf_tir.cluster.nodes import wait_for_gpus

    ray.nodes = [HEAD]
    with pytest.raises(
        ClusterFull, match=r"ds\.attn_implementation = 'flash_attention_2' .*: 10\.0\.0\.1 \(8 CPUs, 0 GPUs\)"
    ):
        run(wait_for_gpus(Config(ds={"attn_implementation": "flash_attention_2"})))
    run(wait_for_gpus(Config(ds={"attn_implementation": "sdpa", "packing_samples": False})))


def test_nccl_is_refused_where_there_are_no_gpus_and_what_is_slow_or_untried_is_said(ray: Ray):
    from openrlhf_tir.cluster.nodes import has_gpus, transport

    gloo, nccl = Config(vllm={"sync_backend": "gloo"}), Config(vllm={"sync_backend": "nccl"})
    ray.nodes = [HEAD]
    assert transport(Config()) is None and transport(gloo) is None
    with pytest.raises(ConfigError, match=r"vllm\.sync_backend = 'nccl' .*: 10\.0\.0\.1 \(8 CPUs, 0 GPUs\).*'gloo'"):
        transport(nccl)
    ray.nodes = [HEAD, eight("10.0.0.2")]
    has_gpus.cache_clear()
    assert transport(Config()) is None
    assert "'delta'" in transport(gloo) and "'file'" in transport(nccl)


def test_a_restart_waits_for_the_nodes_that_have_them(ray: Ray):
    from openrlhf_tir.cluster.nodes import has_gpus, wait_for_gpus

    ray.nodes = [HEAD]

    async def scenario():
        waiting = asyncio.create_task(
            wait_for_gpus(Config(ds={"attn_implementation": "flash_attention_2"}, train={"start_wait_s": 600}))
        )
        await asyncio.sleep(100)
        assert not waiting.done()
        ray.nodes = [HEAD, eight("10.0.0.2")]
        await waiting

    run(scenario())
    assert has_gpus()


def test_reward_models_of_two_nodes_have_a_bundle_on_each_and_are_so_many_times_two(ray: Ray):
    from openrlhf_tir.cluster.nodes import nodes, placement, reward_room

    ray.nodes = [eight("10.0.0.2"), eight("10.0.0.3")]
    cfg = Config(
        reward={"name": "model", "model_name_or_path": "rm", "model_replicas": 3, "num_nodes": 2},
        actor={"num_gpus_per_node": 2},
    )
    room = reward_room(cfg)
    assert (room.bundles, room.strategy, room.num_gpus) == ([{"CPU": 3.0, "GPU": 3.0}] * 2, "SPREAD", 1.0)
    assert reward_room(Config(reward={"model_replicas": 3})).bundles == [{"CPU": 1.0, "GPU": 1.0}] * 3
    placed, _ = placement(cfg, nodes())
    assert [sum(name.startswith("reward") for name in placed[address]) for address in placed] == [3, 3]


def test_the_learners_room_is_reserved_before_any_engine_asks(ray: Ray):
    """Ray gives each engine the emptiest node: of eight nodes of eight GPUs, eight engines of four would take a half of
    each, and no learner of zerotir_32b, which needs four whole nodes, would ever start."""
    from openrlhf_tir.cluster.services import _start

    ray.nodes = [eight(f"10.0.0.{i}") for i in range(8)]
    cfg = Config(
        actor={"num_nodes": 4, "num_gpus_per_node": 8},
        vllm={"num_engines": 8, "tensor_parallel_size": 4},
    )

    async def learner_has_no_room():
        ray.ready_s = 1e6
        with pytest.raises(ClusterFull, match=re.escape(str([{"CPU": 8.0, "GPU": 8.0}] * 4))):
            await _start(cfg, {}, True)

    run(learner_has_no_room())
    assert [(group.bundles[0]["GPU"], group.removed) for group in ray.groups] == [(8.0, True)], "nothing else was asked"
    assert ray.actors == [], "no model was loaded"

    ray.ready_s = 1.0
    ray.groups.clear()
    pool, ranks, *_ = run(_start(cfg, {}, True))
    assert [group.bundles[0]["GPU"] for group in ray.groups] == [8.0, *[4.0] * 8]
    assert len(pool.members) == 8 and len(ranks.ranks) == 32


def dead(of: dict) -> dict:
    return {**of, "Alive": False}


@pytest.mark.parametrize(
    ("there", "controller", "hosts", "alone"),
    [
        ([HEAD], "10.0.0.1", ["10.0.0.1"], True),
        ([HEAD, dead(node("10.0.0.2", CPU=8.0))], "10.0.0.1", ["10.0.0.1"], True),
        ([HEAD, node("10.0.0.2", CPU=8.0)], "10.0.0.1", ["10.0.0.1", "10.0.0.2"], False),
        # everything of the run is on the node with GPUs, where the controller is too
        ([HEAD, eight("10.0.0.2")], "10.0.0.2", ["10.0.0.2"], True),
        # the controller's memory and loopback are the head's
        ([HEAD, eight("10.0.0.2")], "10.0.0.1", ["10.0.0.2"], False),
        ([eight("10.0.0.2"), dead(eight("10.0.0.3"))], "10.0.0.2", ["10.0.0.2"], True),
        ([eight("10.0.0.2"), eight("10.0.0.3")], "10.0.0.2", ["10.0.0.2", "10.0.0.3"], False),
    ],
)
def test_the_nodes_of_a_run_are_those_that_can_hold_an_engine_or_a_rank(ray: Ray, there, controller, hosts, alone):
    from openrlhf_tir.cluster import nodes

    ray.nodes, ray.controller = there, controller
    assert [host.address for host in nodes.hosts()] == hosts
    assert nodes.only_here() == alone
