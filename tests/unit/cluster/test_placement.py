"""Reserved resources are given back whatever becomes of a start: cancelled, failed, no room. Ray's placement groups as
records; virtual time."""

from __future__ import annotations

import asyncio

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import ClusterFull, EngineGone
from openrlhf_tir.simulation.virtual_loop import run

from .fake_ray import spawned

pytestmark = pytest.mark.slow  # importing ray


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
        with pytest.raises(EngineGone, match=r"timeouts\.start_s = 20 s"):
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
            match=(r" 0: .*\[\{'CPU': 1.*\}\].*\{'CPU': 0\.0\} \w+ \{'CPU': 4\.0\}.*10\.0\.0\.1"),
        ):
            await spawned()
        assert [g.removed for g in ray.groups] == [True]

    run(scenario())


@pytest.mark.parametrize(("start_wait_s", "free_after_s"), [(0, 60), (900, 960)])
def test_room_is_waited_for_a_minute_and_as_long_as_the_start_may_wait(ray, start_wait_s, free_after_s):
    async def scenario():
        cfg = Config(train={"start_wait_s": start_wait_s})
        ray.ready_s = free_after_s + 1
        with pytest.raises(ClusterFull):
            await spawned(cfg)
        ray.ready_s = free_after_s - 1
        await spawned(cfg)
        assert [g.removed for g in ray.groups] == [True, False]

    run(scenario())


def test_learner_ranks_that_do_not_come_up_are_ended_and_give_their_room_back(ray):
    async def scenario():
        from openrlhf_tir.cluster.learner_group import LearnerGroup
        from openrlhf_tir.errors import LearnerDied

        ray.prepare = lambda actor: actor.hangs.add("address")
        with pytest.raises(LearnerDied, match=r"'address' .*timeouts\.start_s = 20 s"):
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
    assert (
        len([r for r in caplog.records if r.levelname == "WARNING" and any(isinstance(a, ClusterFull) for a in r.args)])
        == 1
    )


def test_they_do_not_wait_for_ever(ray):
    async def scenario():
        from openrlhf_tir.cluster.learner_group import LearnerGroup

        ray.ready_s = 1000
        with pytest.raises(ClusterFull):
            await LearnerGroup.start_again(Config())
        assert len(ray.groups) == 8 and all(g.removed for g in ray.groups)

    run(scenario())


@pytest.mark.parametrize(("dying", "starts"), [(2, 3), (9, 3)])
def test_ranks_that_are_lost_as_they_start_again_are_started_again_so_many_times(ray, dying, starts):
    """A node that is back may drop its first connections; ranks that always die have another reason, which is told."""

    async def scenario():
        from openrlhf_tir.cluster.learner_group import LearnerGroup
        from openrlhf_tir.errors import LearnerDied

        ray.prepare = lambda actor: actor.hangs.update({"address"} if len(ray.groups) <= dying else ())
        starting = LearnerGroup.start_again(Config(timeouts={"start_s": 20}))
        if dying < starts:
            await starting
        else:
            with pytest.raises(LearnerDied, match=r"timeouts\.start_s = 20 s"):
                await starting
        assert [g.removed for g in ray.groups] == ([True] * dying + [False] if dying < starts else [True] * starts)

    run(scenario())
