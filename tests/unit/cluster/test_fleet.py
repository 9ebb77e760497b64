"""Fleet: how many actors there are, over deaths, silence, growing and shrinking. Virtual time; actors are records."""

from __future__ import annotations

import asyncio
import re

import pytest

from openrlhf_tir.cluster.fleet import Fleet
from openrlhf_tir.errors import ClusterFull, EngineGone, PipelineError
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.waiting.deadlines import Deadline


class FakeActor:
    def __init__(self, index: int, number: int) -> None:
        self.index, self.number, self.name = index, number, f"rollout-{index}"
        self.silent, self.dead, self.end = False, False, ""
        self.beats, self.odd_beats, self.stops_badly = 0, 0, False

    async def heartbeat(self) -> None:
        self.beats += 1
        if self.odd_beats:
            self.odd_beats -= 1
            raise OSError("a bug in the heartbeat")
        if self.silent:
            await asyncio.get_running_loop().create_future()
        if self.dead:
            raise EngineGone("no process")

    async def stop(self) -> None:
        if self.stops_badly:
            raise OSError("broken pipe")
        self.end = "stopped"

    def kill(self) -> None:
        self.end = "killed"


class Cluster:
    """`fails`: how many next starts fail. `full`: find no room. `seconds`: how long the start of an index takes."""

    def __init__(self, size: int, **kwargs) -> None:
        self.started: list[FakeActor] = []
        self.fails = self.full = self.tries = 0
        self.seconds: dict[int, float] = {}
        self.fleet = Fleet(self.spawn, size=size, unresponsive=Deadline(100.0, "unresponsive"), **kwargs)

    async def spawn(self, index: int) -> FakeActor:
        self.tries += 1
        await asyncio.sleep(self.seconds.get(index, 1))
        if self.full:
            self.full -= 1
            raise ClusterFull("no room for rollout engine")
        if self.fails:
            self.fails -= 1
            raise RuntimeError("no GPU is free")
        self.started.append(FakeActor(index, len(self.started)))
        return self.started[-1]

    @property
    def names(self) -> list[str]:
        return sorted(a.name for a in self.fleet.members)


def test_a_dead_actor_is_replaced_under_its_name_and_proved_before_it_joins():
    async def scenario():
        c, proved = Cluster(2), []

        async def prove(actor, admit):
            assert actor not in c.fleet.members
            proved.append(actor.number)

        await c.fleet.start()
        c.fleet.prove = prove
        c.started[0].dead = True
        await asyncio.sleep(30)
        assert c.names == ["rollout-0", "rollout-1"]
        assert (c.started[0].end, proved) == ("killed", [2])
        assert {s.engine.number for s in c.fleet.router.engines.values()} == {1, 2}
        await c.fleet.stop()
        assert [a.end for a in c.started] == ["killed", "stopped", "stopped"]

    run(scenario())


def test_a_silent_actor_gets_no_groups_and_comes_back_when_it_answers():
    async def scenario():
        c = Cluster(2)
        await c.fleet.start()
        c.started[0].silent = True
        await asyncio.sleep(50)
        engines = c.fleet.router.engines
        assert {name: s.silent for name, s in engines.items()} == {"rollout-0": True, "rollout-1": False}
        await asyncio.sleep(60)
        assert c.started[0].end == "killed" and engines["rollout-0"].engine is c.started[2]
        await c.fleet.stop()

    run(scenario())


def test_growing_adds_actors_and_shrinking_lets_the_youngest_finish_their_groups():
    async def scenario():
        c = Cluster(1)
        await c.fleet.start()
        c.fleet.resize(3)
        await asyncio.sleep(2)
        assert c.names == ["rollout-0", "rollout-1", "rollout-2"]
        async with c.fleet.router.place("p", 16), c.fleet.router.place("q", 16), c.fleet.router.place("r", 16):
            c.fleet.resize(1)
            await asyncio.sleep(5)
            assert len(c.fleet.members) == 3  # they drain; pushes still reach them
            async with c.fleet.router.place("s", 16) as member:
                assert member.name == "rollout-0"
        await asyncio.sleep(1)
        assert c.names == ["rollout-0"]
        assert [a.end for a in c.started] == ["", "stopped", "stopped"]
        await c.fleet.stop()

    run(scenario())


def test_an_actor_that_still_drains_stays_when_the_fleet_grows_again():
    async def scenario():
        c = Cluster(3)
        await c.fleet.start()
        async with c.fleet.router.place("p", 16), c.fleet.router.place("q", 16), c.fleet.router.place("r", 16):
            c.fleet.resize(1)
            await asyncio.sleep(5)
            c.fleet.resize(2)
            await asyncio.sleep(5)
            async with c.fleet.router.place("s", 16) as first, c.fleet.router.place("t", 16) as second:
                assert {first.name, second.name} == {"rollout-0", "rollout-1"}
        await asyncio.sleep(5)
        assert c.names == ["rollout-0", "rollout-1"]
        assert [a.end for a in c.started] == ["", "", "stopped"], "and no other one is started"
        c.fleet.resize(1)
        await asyncio.sleep(5)
        assert c.names == ["rollout-0"] and c.started[1].end == "stopped"
        await c.fleet.stop()

    run(scenario())


def test_an_actor_that_drains_takes_the_place_of_one_that_dies():
    async def scenario():
        c = Cluster(2)
        await c.fleet.start()
        async with c.fleet.router.place("p"), c.fleet.router.place("q"):
            c.fleet.resize(1)
            await asyncio.sleep(5)
            c.fleet.mark_lost(c.started[0], "killed by a test")
        await asyncio.sleep(20)
        assert c.names == ["rollout-1"] and len(c.started) == 2
        await c.fleet.stop()

    run(scenario())


def test_shrinking_gives_up_those_that_are_still_starting_first():
    async def scenario():
        c = Cluster(1)
        await c.fleet.start()
        c.fleet.resize(3)
        await asyncio.sleep(0.5)
        c.fleet.resize(1)
        await asyncio.sleep(5)
        assert c.names == ["rollout-0"] and len(c.started) == 1
        await c.fleet.stop()

    run(scenario())


@pytest.mark.parametrize("sizes", [(1,), (1, 2)], ids=["smaller", "smaller, and larger again"])
def test_an_actor_whose_proof_ends_as_the_fleet_shrinks_is_killed(sizes):
    async def scenario():
        c, proved = Cluster(1), asyncio.Event()
        await c.fleet.start()

        async def prove(actor, admit):
            await proved.wait()
            admit()

        c.fleet.prove = prove
        c.fleet.resize(2)
        await asyncio.sleep(5)
        proved.set()
        for size in sizes:
            c.fleet.resize(size)
        await asyncio.sleep(5)
        assert c.started[1].end == "killed"
        assert len(c.fleet.members) == c.fleet.size
        await c.fleet.stop()

    run(scenario())


def test_an_actor_that_dies_while_it_drains_is_not_replaced():
    async def scenario():
        c = Cluster(2)
        await c.fleet.start()
        async with c.fleet.router.place("p"), c.fleet.router.place("q"):
            c.fleet.resize(1)
            await asyncio.sleep(0)
            c.fleet.mark_lost(c.started[1], "killed by a test")
        await asyncio.sleep(20)
        assert c.names == ["rollout-0"] and len(c.started) == 2
        await c.fleet.stop()

    run(scenario())


def test_starts_that_fail_are_tried_again_while_others_work():
    async def scenario():
        c = Cluster(2)
        await c.fleet.start()
        c.fails = 4
        c.fleet.mark_lost(c.started[0], "killed by a test")
        await asyncio.sleep(60)
        assert c.names == ["rollout-1"]
        await asyncio.sleep(60)  # tries after 1, 7, 18, 39 and 80 s
        assert c.names == ["rollout-0", "rollout-1"]
        await c.fleet.stop()

    run(scenario())


def test_with_nobody_left_the_third_failed_start_is_the_end():
    async def scenario():
        c = Cluster(1)
        await c.fleet.start()
        c.fails = 3
        c.fleet.mark_lost(c.started[0], "killed by a test")
        with pytest.raises(PipelineError, match="no GPU is free"):
            async with c.fleet.router.place("p"):
                pass
        await c.fleet.stop()

    run(scenario())


def test_when_one_of_the_first_does_not_start_none_is_left():
    async def scenario():
        c = Cluster(3)
        c.seconds[2] = 5
        starting = asyncio.create_task(c.fleet.start())
        await asyncio.sleep(2)
        c.fails = 1
        with pytest.raises(RuntimeError, match="no GPU is free"):
            await starting
        assert [a.end for a in c.started] == ["killed", "killed"] and c.names == []

    run(scenario())


def test_an_actor_whose_weights_cannot_be_proved_does_not_join():
    async def scenario():
        c = Cluster(2)
        await c.fleet.start()

        async def prove(actor, admit):
            if actor.number == 2:
                raise RuntimeError("canary")

        c.fleet.prove = prove
        c.fleet.mark_lost(c.started[0], "killed by a test")
        await asyncio.sleep(20)
        assert c.started[2].end == "killed"
        assert {a.number for a in c.fleet.members} == {1, 3}
        await c.fleet.stop()

    run(scenario())


def test_a_start_that_is_cancelled_leaves_none():
    async def scenario():
        c = Cluster(2)
        c.seconds[1] = 1000
        starting = asyncio.create_task(c.fleet.start())
        await asyncio.sleep(2)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert [a.end for a in c.started] == ["killed"]

    run(scenario())


def test_eight_places_that_each_fail_once_or_twice_do_not_end_the_run():
    async def scenario():
        c = Cluster(8)
        await c.fleet.start()
        c.fails = 16
        for actor in list(c.fleet.members):
            c.fleet.mark_lost(actor, "the node went down")
        async with c.fleet.router.place("p"):
            pass
        await asyncio.sleep(60)
        assert len(c.names) == 8
        await c.fleet.stop()

    run(scenario())


def test_with_nobody_left_a_second_place_that_never_starts_either_is_the_end():
    async def scenario():
        c = Cluster(2)
        await c.fleet.start()
        c.fails = 100
        for actor in list(c.fleet.members):
            c.fleet.mark_lost(actor, "the node went down")
        with pytest.raises(PipelineError, match="no GPU is free"):
            async with c.fleet.router.place("p"):
                pass
        assert c.tries == 2 + 2 * 3
        await c.fleet.stop()

    run(scenario())


def test_a_cluster_without_room_is_waited_for_with_growing_pauses_and_said_once(caplog):
    async def scenario():
        c = Cluster(1)
        await c.fleet.start()
        c.full = 8
        c.fleet.mark_lost(c.started[0], "its node was taken away")
        async with c.fleet.router.place("p") as member:
            assert member is c.started[1]
        assert asyncio.get_running_loop().time() > 600 and c.tries == 1 + 8 + 1
        await c.fleet.stop()

    run(scenario())
    assert (
        len([r for r in caplog.records if r.levelname == "WARNING" and any(isinstance(a, ClusterFull) for a in r.args)])
        == 1
    )


def test_an_actor_that_hangs_while_it_is_proved_is_replaced():
    async def scenario():
        c = Cluster(2)
        await c.fleet.start()

        async def prove(actor, admit):
            if actor.number == 2:  # its turn for the push never comes, and its process stops meanwhile
                actor.silent = True
                await asyncio.get_running_loop().create_future()

        c.fleet.prove = prove
        c.fleet.mark_lost(c.started[0], "killed by a test")
        await asyncio.sleep(150)
        assert c.started[2].end == "killed"
        assert {a.number for a in c.fleet.members} == {1, 3}
        await c.fleet.stop()

    run(scenario())


@pytest.mark.parametrize(("silence_s", "heartbeat_s"), [(300, 10), (100, 10), (20, 2)])
def test_ten_heartbeats_fit_into_the_silence_after_which_an_engine_is_lost(silence_s, heartbeat_s):
    fleet = Fleet(Cluster(1).spawn, size=1, unresponsive=Deadline(silence_s, "the silence"))
    assert fleet.heartbeat_s == heartbeat_s


def test_a_heartbeat_that_breaks_is_taken_up_again_and_the_actor_still_watched():
    async def scenario():
        c = Cluster(1)
        await c.fleet.start()
        first = c.started[0]
        first.odd_beats = 3
        await asyncio.sleep(200)
        assert first in c.fleet.members and first.beats > 8
        first.dead = True
        await asyncio.sleep(30)
        assert first.end == "killed" and c.names == ["rollout-0"]
        await c.fleet.stop()

    run(scenario())


def test_a_heartbeat_that_stays_broken_costs_the_actor_and_not_the_run(caplog):
    async def scenario():
        c = Cluster(1)
        await c.fleet.start()
        c.started[0].odd_beats = 1000
        await asyncio.sleep(1000)
        assert c.started[0].end == "killed"
        assert [a.number for a in c.fleet.members] == [1]
        await c.fleet.stop()

    run(scenario())
    assert re.search(r"'heartbeat of rollout-0'.* 5 .*OSError: a bug in the heartbeat", caplog.text)


def test_an_actor_that_does_not_stop_in_good_order_is_killed():
    async def scenario():
        c = Cluster(2)
        await c.fleet.start()
        c.started[1].stops_badly = True
        c.fleet.resize(1)
        await asyncio.sleep(5)
        assert c.names == ["rollout-0"] and c.started[1].end == "killed"
        await c.fleet.stop()

    run(scenario())
