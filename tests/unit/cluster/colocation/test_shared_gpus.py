"""train.colocate_all on a cluster: one reservation for ranks and engines, the order in which they start, and who keeps
what when one is replaced. Fake Ray."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import ClusterFull, ConfigError
from openrlhf_tir.pipeline.colocation.time_share import GpuTurn
from openrlhf_tir.simulation.virtual_loop import run

from ..fake_ray import Ray, lost, node

pytestmark = pytest.mark.slow  # importing ray


def config(**sections) -> Config:
    return Config(
        **{
            "train": {"colocate_all": True},
            "pipeline": {"mode": "sync"},
            "actor": {"num_gpus_per_node": 2},
            "vllm": {"num_engines": 2},
            "timeouts": {"push_s": 6e7},
            **sections,
        }
    )


@pytest.fixture
def events(ray: Ray, monkeypatch) -> list[str]:
    """What every process is told, and where it was put."""
    happened: list[str] = []
    strategy = lambda group, placement_group_bundle_index=None, **_: placement_group_bundle_index  # noqa: E731
    for module in ("engine_handle", "learner_group"):
        monkeypatch.setattr(f"openrlhf_tir.cluster.{module}.PlacementGroupSchedulingStrategy", strategy)

    def watched(actor) -> None:
        answer = actor._answer
        bundle, gpus = ray.asked[-1]["scheduling_strategy"], ray.asked[-1]["num_gpus"]

        async def told(method: str, *args):
            of_rank = method in ("call", "address") or (method == "start" and isinstance(args[1], str))
            kind = "rank" if of_rank else "engine"
            if method == "start":
                happened.append(f"{kind} {actor.index} in bundle {bundle} with {gpus:g} GPU starts")
            elif method in ("sleep", "wake", "call"):
                happened.append(f"{kind} {actor.index} {args[0] if args else method}")
            return await answer(method, *args)

        actor._answer = told

    ray.prepare = watched
    ray.nodes = [node("10.0.0.1", CPU=16.0, GPU=2.0)]
    return happened


async def started(cfg: Config):
    from openrlhf_tir.cluster.services import Services, _in_turns

    pool, ranks, time_share, shared = await _in_turns(cfg, {})
    return Services(cfg, None, pool, ranks, None, None, time_share, shared)


START = [
    *(
        "engine 0 in bundle 0 with 0.5 GPU starts",
        "engine 1 in bundle 1 with 0.5 GPU starts",
        "engine 0 sleep",
        "engine 1 sleep",
    ),
    *("rank 0 in bundle 0 with 0.5 GPU starts", "rank 1 in bundle 1 with 0.5 GPU starts"),
]


def test_engines_start_first_and_sleep_while_the_ranks_start_beside_them(ray: Ray, events):
    async def session() -> tuple:
        services = await started(config())
        at_start, turn = list(events), services.time_share.turn
        async with services.sampling():
            pass
        return at_start, turn, events[len(at_start) :]

    at_start, turn, then = run(session())
    assert (at_start, turn) == (START, GpuTurn.LEARNING)
    assert then == ["rank 0 offload", "rank 1 offload", "engine 0 wake", "engine 1 wake"]
    (group,) = ray.groups
    assert (group.bundles, group.strategy) == ([{"CPU": 2.0, "GPU": 1.0}] * 2, "PACK")


def test_ranks_that_are_replaced_start_in_their_places_with_the_engines_asleep(ray: Ray, events):
    async def session() -> list[str]:
        services = await started(config())
        async with services.sampling():
            pass
        events.clear()
        await services.replace_learner(config())
        assert services.time_share.turn is GpuTurn.LEARNING and services.time_share.learner is services.learner
        return events

    assert run(session()) == START[2:]
    (group,) = ray.groups
    assert not group.removed, "the engines are in it"


def test_an_engine_that_is_lost_starts_again_in_its_place_when_the_learner_has_left(ray: Ray, events):
    async def session() -> list[str]:
        services = await started(config())
        events.clear()
        async with services.learning():
            services.pool.fleet.mark_lost(services.pool.members[0], "a test")
            await asyncio.sleep(100)
            assert events == []
        await asyncio.sleep(100)
        await services.pool.stop()
        return events

    assert run(session()) == ["rank 0 offload", "rank 1 offload", "engine 0 in bundle 0 with 0.5 GPU starts"]
    assert not ray.groups[0].removed


def test_one_that_is_asked_for_beyond_the_ranks_has_no_place_and_is_told_so(ray: Ray, events):
    from openrlhf_tir.cluster.engine_handle import spawn

    async def session() -> None:
        services = await started(config())
        await spawn(object, 5, config(), {}, lost, shared=services.shared)

    with pytest.raises(ClusterFull, match=r" 2 .*train\.colocate_all.*train\.share_gpus.* 5 "):
        run(session())


def test_more_engines_than_ranks_are_refused_and_the_servers_stay_as_they_are(ray: Ray, events):
    from openrlhf_tir.cluster.jobs.control import Control, apply

    def search_server(url: str, *, token: str | None):
        return None, SimpleNamespace(env="search")

    async def session() -> None:
        pool = (await started(config())).pool
        three = Control(rollout_actors=3, env_urls={"search": ["http://a:1"]})
        with pytest.raises(ConfigError, match=r" 2 .* 3 "):
            await apply(three, pool, token=None, serves={"search": "search"}, probe=search_server)
        assert (pool.fleet.size, pool.env_urls) == (2, {})
        for engines in (1, 2):
            await apply(Control(rollout_actors=engines), pool, token=None, serves={})
            assert pool.fleet.size == engines

    run(session())


def test_engines_grow_again_while_one_of_them_still_drains_beside_its_rank(ray: Ray, events):
    async def session() -> list[str]:
        pool = (await started(config())).pool
        async with pool.router.place("p", 16), pool.router.place("q", 16):
            pool.resize(1)
            await asyncio.sleep(1)
            pool.resize(2)
            await asyncio.sleep(1)
        await asyncio.sleep(1000)
        return sorted(member.name for member in pool.members)

    assert run(session()) == ["rollout-0", "rollout-1"]


def test_ranks_that_do_not_start_leave_no_engine_behind(ray: Ray, events):
    watched = ray.prepare

    def prepare(actor) -> None:
        watched(actor)
        if len(ray.actors) == 4:
            actor.raises["check_node"] = RuntimeError("no such directory")

    ray.prepare = prepare
    with pytest.raises(RuntimeError, match="no such directory"):
        run(started(config()))
    assert {id(a) for a in ray.killed} == {id(a) for a in ray.actors}


def test_without_gpus_it_is_refused_before_anything_is_reserved_but_for_the_stand_in(ray: Ray, events):
    from openrlhf_tir.cluster.nodes import has_gpus

    ray.nodes = [node("10.0.0.1", CPU=8.0)]
    has_gpus.cache_clear()
    with pytest.raises(ConfigError, match=r": 10\.0\.0\.1 \(8 CPUs, 0 GPUs\)") as refused:
        run(started(config()))
    assert (refused.value.code, refused.value.setting) == ("machine", "train.colocate_all")
    assert ray.groups == []
    run(started(config(rollout={"engine": "torch"})))
    assert ray.groups[0].bundles == [{"CPU": 2.0}] * 2 and {asked["num_gpus"] for asked in ray.asked} == {0.0}


def test_the_plan_puts_a_rank_and_an_engine_on_each_gpu(ray: Ray, events):
    from openrlhf_tir.cluster.nodes import nodes, placement, plan

    def numbers(processes) -> list[list[str]]:
        return [re.findall(r"\d+", name) for name in processes]

    ray.nodes = [node("a", CPU=16.0, GPU=2.0), node("b", CPU=16.0, GPU=2.0)]
    placed, missing = placement(config(actor={"num_gpus_per_node": 4}), nodes())
    assert numbers(placed["a"]) == [["0", "0"], ["1", "1"]], "a rank and an engine"
    assert numbers(placed["b"]) == [["2"], ["3"]], "a rank"
    assert not missing
    _, missing = placement(config(actor={"num_gpus_per_node": 8}), nodes())
    assert missing == {f"learner rank {number}": 1 for number in range(4, 8)}
    assert "vllm.num_engines" in plan(config(actor={"num_gpus_per_node": 8}), nodes())[-1]
    placed, _ = placement(config(), nodes(), learner=False)
    assert sorted([*placed["a"], *placed["b"]]) == ["engine 0", "engine 1"], "an evaluation has engines only"
