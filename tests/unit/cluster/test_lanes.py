"""The fast lane over rollout actors: their words on responses are put together, moves reach the writer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError, EngineGone
from openrlhf_tir.pipeline.router import Router
from openrlhf_tir.rollout.request_queue import RequestQueue
from openrlhf_tir.rollout.sequence_migration import SamplingLocation, SequenceMigration
from openrlhf_tir.types import GroupKey

pytestmark = pytest.mark.slow  # importing ray


class FakeMember:
    def __init__(self, name: str, paths: dict[str, SamplingLocation], progress: dict[str, int]) -> None:
        self.name, self.paths, self.sampled, self.actor = name, paths, progress, f"handle of {name}"
        self.gone = False
        self.moved: list[tuple] = []

    unresponsive = None

    async def call(self, method, *args, deadline):
        return await getattr(self, method.__name__)(*args)

    async def under_way(self):
        if self.gone:
            raise EngineGone("dead")
        return list(self.paths.items()), self.sampled

    async def move(self, trajectory, name, target):
        if self.gone:
            raise EngineGone("dead")
        self.moved.append((trajectory, name, target))
        return trajectory in self.paths


@pytest.fixture
def pool():
    a = FakeMember(
        "rollout-0",
        {
            "0/7/0#0": SamplingLocation(tokens=100, request="0/7/0#0/1"),
            "0/7/0#1": SamplingLocation("rollout-1", 1, 50, "0/7/0#1/0~1"),
        },
        {"0/7/0#0/1": 11},
    )
    b = FakeMember("rollout-1", {"0/8/0#3": SamplingLocation()}, {"0/7/0#1/0~1": 22})
    return SimpleNamespace(members=[a, b], router=Router(), lane_engines=0.0, lane_moves=0.0)


@pytest.fixture
def lanes(pool):
    from openrlhf_tir.cluster.lanes import PoolLanes

    return PoolLanes(pool)


async def test_tokens_are_those_that_are_whole_and_those_of_the_engine_that_samples_on(lanes):
    found = {r.name: r for r in await lanes.under_way()}
    here, moved, tool = found["0/7/0#0"], found["0/7/0#1"], found["0/8/0#3"]
    assert (here.group, here.sample, here.engine) == (GroupKey(0, 7, 0), 0, "rollout-0")
    assert (here.tokens, here.moves) == (111, 0)
    assert (moved.engine, moved.home, moved.tokens, moved.moves) == ("rollout-1", "rollout-0", 72, 1)
    assert (tool.engine, tool.tokens) == ("rollout-1", 0)


async def test_the_actor_that_writes_a_response_is_told_where_it_goes_on(lanes, pool):
    response = next(r for r in await lanes.under_way() if r.name == "0/7/0#0")
    assert await lanes.move(response, "rollout-1")
    assert pool.members[0].moved == [("0/7/0#0", "rollout-1", "handle of rollout-1")] and pool.lane_moves == 1
    assert not await lanes.move(response, "rollout-9"), "a lane that is not there any more"


async def test_an_actor_that_is_lost_is_left_out_and_nothing_moves_from_it(lanes, pool):
    response = next(r for r in await lanes.under_way() if r.home == "rollout-0")
    pool.members[0].gone = True
    assert [r.name for r in await lanes.under_way()] == ["0/8/0#3"]
    assert not await lanes.move(response, "rollout-1")


async def test_a_lane_gets_no_new_groups_while_there_is_another_engine(lanes, pool):
    router = pool.router
    router.join("rollout-0", "a")
    router.join("rollout-1", "b")
    lanes.reserve({"rollout-0"}, {"rollout-0": 0, "rollout-1": 9})
    for prompt in "xyz":
        async with router.place(prompt) as member:
            assert member == "b"
    router.leave("rollout-1")
    async with router.place("w") as member:
        assert member == "a"


async def test_new_groups_go_where_the_fewest_responses_are_under_way_not_where_the_fewest_groups_are(lanes, pool):
    """rollout-0 has two groups, of which one response is left; rollout-1 has one group of 16 and a guest."""
    router = pool.router
    router.join("rollout-0", "a")
    router.join("rollout-1", "b")
    async with router.place("x", 16), router.place("y", 16), router.place("z", 16):
        assert (router.engines["rollout-0"].assigned, router.engines["rollout-1"].assigned) == (32, 16)
        lanes.reserve((), {"rollout-0": 1, "rollout-1": 17})
        async with router.place("w", 16) as member, router.place("v", 16) as another:
            assert (member, another) == ("a", "a") or (member, another) == ("a", "b")
            assert router.engines["rollout-0"].load + router.engines["rollout-1"].load == 18 + 32
        lanes.reserve((), {})
        assert router.engines["rollout-0"].load == 32


async def test_an_actor_that_is_to_leave_or_does_not_answer_is_no_lane(lanes, pool):
    router = pool.router
    router.join("rollout-0", "a")
    router.join("rollout-1", "b")
    assert lanes.engines == ["rollout-0", "rollout-1"]
    router.set_silent("rollout-0", True)
    assert lanes.engines == ["rollout-1"]
    router.set_silent("rollout-0", False)
    await router.wait_until_drained("rollout-1")
    assert lanes.engines == ["rollout-0"]


def test_an_engine_without_abort_is_refused_and_off_asks_for_none():
    from openrlhf_tir.cluster.peer_engine import migration_of

    able = SimpleNamespace(abort=print, progress=dict)
    on = Config.model_validate({"vllm": {"num_engines": 4}, "pipeline": {"fast_lane": "auto"}})
    assert migration_of(Config(), RequestQueue(SimpleNamespace()), None) is None
    assert isinstance(migration_of(on, RequestQueue(able), None), SequenceMigration)
    with pytest.raises(ConfigError, match=r"SimpleNamespace .*pipeline\.fast_lane = 'off'"):
        migration_of(on, RequestQueue(SimpleNamespace()), None)
