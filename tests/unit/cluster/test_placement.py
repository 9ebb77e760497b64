"""Reserved resources are given back whatever becomes of a start: cancelled, failed, no room. Ray's placement groups as records; virtual time."""

from __future__ import annotations

import asyncio

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import ClusterFull, EngineGone
from openrlhf_tir.simulation.virtual_loop import run

pytestmark = pytest.mark.slow  # importing ray


class Group:
    """A placement group that is ready after `ready_s`."""

    def __init__(self, ready_s: float, bundles: list, strategy: str) -> None:
        self.ready_s, self.removed, self.bundles, self.strategy = ready_s, False, bundles, strategy
        self.on = {i: "id of 10.0.0.1" for i in range(len(bundles))}

    async def ready(self) -> None:
        await asyncio.sleep(self.ready_s)


def node(address: str, **resources: float) -> dict:
    return {"NodeID": f"id of {address}", "NodeManagerAddress": address, "Alive": True, "Resources": resources}


class Ray:
    """The calls that `place`, `spawn` and LearnerGroup make."""

    def __init__(self, monkeypatch) -> None:
        from openrlhf_tir.cluster import nodes

        from .fake_actors import FakeActor

        self.nodes = [node("10.0.0.1", CPU=4.0)]
        self.asked: list[dict] = []
        self.groups: list[Group] = []
        self.ready_s, self.fails_to_start = 1.0, False
        self.actors: list[FakeActor] = []
        self.prepare = lambda actor: None
        self.killed: list[FakeActor] = []
        remove = lambda group: setattr(group, "removed", True)  # noqa: E731
        for module in ("ray_session", "member", "learner_group"):
            monkeypatch.setattr(f"openrlhf_tir.cluster.{module}.remove_placement_group", remove)
        for module in ("member", "learner_group"):
            monkeypatch.setattr(f"openrlhf_tir.cluster.{module}.PlacementGroupSchedulingStrategy", lambda *args, **kwargs: None)
        monkeypatch.setattr("openrlhf_tir.cluster.ray_session.placement_group", self.placement_group)
        monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 0.0})
        monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 4.0, "memory": 1.0})
        monkeypatch.setattr("ray.nodes", lambda: self.nodes)
        monkeypatch.setattr("openrlhf_tir.cluster.ray_session.placement_group_table", lambda group: {"bundles_to_node_id": group.on})
        nodes.has_gpus.cache_clear()
        monkeypatch.setattr("ray.kill", self.killed.append)
        monkeypatch.setattr("ray.remote", lambda *args, **kwargs: self if args else lambda cls: self)

    def placement_group(self, bundles, strategy) -> Group:
        self.groups.append(Group(self.ready_s, bundles, strategy))
        return self.groups[-1]

    def options(self, **kwargs) -> Ray:
        self.asked.append(kwargs)
        return self

    def remote(self, index: int, *args):
        from .fake_actors import FakeActor

        if self.fails_to_start:
            raise ValueError("the class cannot be pickled")
        self.actors.append(FakeActor(index))
        self.prepare(self.actors[-1])
        return self.actors[-1]


@pytest.fixture
def ray(monkeypatch):
    from openrlhf_tir.cluster import nodes

    yield Ray(monkeypatch)
    nodes.has_gpus.cache_clear()


def lost(member, why) -> None: ...


async def spawned(cfg: Config | None = None):
    from openrlhf_tir.cluster.member import spawn

    return await spawn(object, 0, cfg or Config(), "model", {}, lost)


def test_a_start_that_is_cancelled_while_it_waits_for_room_leaves_no_reservation(ray):
    async def scenario():
        ray.ready_s = 1000
        starting = asyncio.create_task(spawned())
        await asyncio.sleep(5)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert [g.removed for g in ray.groups] == [True] and not ray.actors

    run(scenario())


def test_one_that_is_cancelled_while_its_model_loads_leaves_neither_process_nor_reservation(ray):
    async def scenario():
        ray.prepare = lambda actor: actor.hangs.add("start")
        starting = asyncio.create_task(spawned())
        await asyncio.sleep(5)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert [g.removed for g in ray.groups] == [True] and ray.killed == ray.actors

    run(scenario())


def test_one_that_is_not_up_in_time_leaves_nothing_and_names_the_setting(ray):
    async def scenario():
        ray.prepare = lambda actor: actor.hangs.add("start")
        with pytest.raises(EngineGone, match=r"The start of rollout-0 was not over within timeouts\.start_s = 20 s"):
            await spawned(Config(timeouts={"start_s": 20}))
        assert [g.removed for g in ray.groups] == [True] and ray.killed == ray.actors

    run(scenario())


def test_an_actor_that_cannot_even_be_created_leaves_no_reservation(ray):
    async def scenario():
        ray.fails_to_start = True
        with pytest.raises(ValueError, match="cannot be pickled"):
            await spawned()
        assert [g.removed for g in ray.groups] == [True]

    run(scenario())


def test_a_full_cluster_is_no_mistake_of_the_user_and_says_what_is_missing(ray):
    async def scenario():
        ray.ready_s = 1000
        with pytest.raises(
            ClusterFull,
            match=r"no room for rollout engine 0: \[\{'CPU': 1.*\}\] .* is wanted, \{'CPU': 0\.0\} of \{'CPU': 4\.0\} is free on 10\.0\.0\.1 \(4 CPUs, 0 GPUs\)",
        ):
            await spawned()
        assert [g.removed for g in ray.groups] == [True]

    run(scenario())


def test_learner_ranks_that_do_not_come_up_are_ended_and_give_their_room_back(ray):
    async def scenario():
        from openrlhf_tir.cluster.learner_group import LearnerDied, LearnerGroup

        ray.prepare = lambda actor: actor.hangs.add("address")
        with pytest.raises(LearnerDied, match=r"'address' of the learner ranks was not over within timeouts\.start_s = 20 s"):
            await LearnerGroup.start(Config(actor={"num_gpus_per_node": 2}, timeouts={"start_s": 20}))
        assert [g.removed for g in ray.groups] == [True] and len(ray.killed) == 2

    run(scenario())


def test_ranks_that_start_again_wait_for_the_room_that_the_lost_ones_held(ray, caplog):
    async def scenario():
        from openrlhf_tir.cluster.learner_group import LearnerGroup

        ray.ready_s = 1000
        starting = asyncio.create_task(LearnerGroup.start_again(Config(actor={"num_gpus_per_node": 2})))
        await asyncio.sleep(200)
        assert len(ray.groups) == 3 and not starting.done()
        ray.ready_s = 1.0
        group = await starting
        assert [g.removed for g in ray.groups] == [True, True, True, False] and len(group.ranks) == 2

    run(scenario())
    assert len([r for r in caplog.records if "waits for room" in r.message and r.levelname == "WARNING"]) == 1


def test_they_do_not_wait_for_ever(ray):
    async def scenario():
        from openrlhf_tir.cluster.learner_group import LearnerGroup

        ray.ready_s = 1000
        with pytest.raises(ClusterFull):
            await LearnerGroup.start_again(Config())
        assert len(ray.groups) == 8 and all(g.removed for g in ray.groups)

    run(scenario())
