"""train.colocate_all through the real loop, fleet and publisher, on a virtual clock: who has the GPUs' memory at every
moment, whatever happens.

The world's memory is watched: the learner's states on the GPUs with an engine awake, or loading, are an out-of-memory
on a real one."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest

from openrlhf_tir.errors import Stopped
from openrlhf_tir.pipeline.colocation.time_share import GpuTimeShare, GpuTurn
from openrlhf_tir.pipeline.colocation.time_shared import TimeSharedPublisher, TimeSharedRollout
from openrlhf_tir.pipeline.ledger.ledger import audit
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.waiting.deadlines import Deadline

from ..random_runs.world import Actor, LearnerGone, World, WorldLearner, live, pipeline_in

PROMPTS, B = 24, 2
MOVE_S = 0.25
"""What a switch takes on either side."""


class SharedActor(Actor):
    """An engine that sleeps."""

    asleep = False

    async def sleep(self) -> None:
        await self.answer(MOVE_S)
        assert not self.world.rolling, "put to sleep under a group"
        self.asleep = True
        self.world.happened(f"{self.name} sleeps")

    async def wake(self) -> None:
        await self.answer(MOVE_S)
        self._awakes("wakes")

    async def update_weights(self, path, version, digest, canary, link=None):
        self._awakes("wakes for a push")
        return await super().update_weights(path, version, digest, canary)

    def _awakes(self, how: str) -> None:
        if self.asleep:
            self.asleep = False
            self.world.happened(f"{self.name} {how}")


class SharedWorld(World):
    learner: SharedLearner | None = None

    def __init__(self, seed: int, **kwargs) -> None:
        super().__init__(seed, **kwargs)
        self.events: list[str] = []
        self.rolling = self.loading = 0

    async def _spawn(self, index: int) -> SharedActor:
        self.loading += 1
        self.happened(f"rollout-{index} loads")
        try:
            await super()._spawn(index)
        finally:
            self.loading -= 1
        return SharedActor(self, index)

    async def run_group(self, key, task):
        self.rolling += 1
        self.happened()
        try:
            return await super().run_group(key, task)
        finally:
            self.rolling -= 1

    def happened(self, what: str = "") -> None:
        """After each change: the memory holds."""
        if what:
            self.events.append(what)
        if self.learner is not None and self.learner.loaded:
            awake = [a.name for a in self.fleet.members if not a.asleep]
            assert not (awake or self.loading or self.rolling), (
                f"out of memory: the learner's states beside {awake}, {self.loading} that load"
            )


class SharedLearner(WorldLearner):
    """Its states are on the GPUs when it starts."""

    def __init__(self, world: SharedWorld, **kwargs) -> None:
        super().__init__(0, **kwargs)
        self.world, self.loaded = world, True
        world.learner = self

    async def onload(self) -> None:
        await asyncio.sleep(MOVE_S)
        self.loaded = True
        self.world.happened("learner loads")

    async def offload(self) -> None:
        await asyncio.sleep(MOVE_S)
        self.loaded = False
        self.world.happened("learner offloads")

    async def step(self, batch):
        assert self.loaded
        self.world.happened("step")
        return await super().step(batch)

    async def load(self, directory):
        assert self.loaded
        return await super().load(directory)


class Session:
    """What cluster/services.py does: engines first, then the ranks, in the learner's turn."""

    def __init__(self, world: SharedWorld) -> None:
        self.world = world
        self.time_share = GpuTimeShare(world.fleet.members, Deadline(2000.0, "a test's"), Deadline(2000.0, "a test's"))
        world.fleet.during_launch = self.time_share.starting

    async def ranks(self, **kwargs) -> SharedLearner:
        self.time_share.learner = None
        async with self.time_share.learning():
            learner = SharedLearner(self.world, **kwargs)
        self.time_share.learner = learner
        return learner

    def pipeline(self, learner: SharedLearner, run_dir, **sections):
        given = {"rollout": {"batch_size": B}, "pipeline": {"mode": "sync"}, **sections}
        p = pipeline_in(self.world, learner, run_dir, prompts=PROMPTS, sections=given)
        p.rollout = TimeSharedRollout(self.world, self.time_share)
        p.publisher = TimeSharedPublisher(
            p.publisher, self.time_share, lambda: p.observer.phase("wait for GPUs", p.version)
        )
        p.evaluation.world = SimpleNamespace(run_group=p.rollout.run_group, rng=self.world.rng)
        return p


async def lived(
    world: SharedWorld, run_dir, *, resume: bool = False, disturb=None, learner_s: float = 1.0, faults=(), **sections
):
    """A session from its start to its end; `disturb(pipeline)` runs beside it. Returns its pipeline."""
    session = Session(world)
    await world.fleet.start()
    learner = await session.ranks(step_s=learner_s)
    learner.faults.update(faults)
    p = session.pipeline(learner, run_dir, **sections)
    beside = asyncio.create_task(disturb(p)) if disturb else None
    try:
        await p.run(resume=resume)
    finally:
        if beside:
            beside.cancel()
        await world.fleet.stop()
        p.scheduler.ledger.close()
    return p


def all_trained(p) -> bool:
    report = audit(p.scheduler.ledger.path)
    assert report.errors == report.open == [] and report.finished and p.learner.stale == []
    return sorted(p.learner.lineage) == sorted(report.trained) == [(0, i) for i in range(PROMPTS)]


def test_each_step_has_the_gpus_to_itself_and_each_push_wakes_the_engines_for_its_canary(tmp_path):
    world = SharedWorld(1, actors=2)
    p = run(lived(world, tmp_path))
    assert all_trained(p)
    start = ["rollout-0 loads", "rollout-1 loads", "rollout-0 sleeps", "rollout-1 sleeps", "learner offloads"]
    first_push = ["rollout-0 wakes for a push", "rollout-1 wakes for a push"]
    step = ["rollout-0 sleeps", "rollout-1 sleeps", "learner loads", "step", "learner offloads", *first_push]
    assert world.events == start + first_push + step * (PROMPTS // B)


def test_what_is_trained_is_what_it_is_with_gpus_of_their_own(tmp_path):
    def latency(r: random.Random) -> float:
        return r.uniform(0.5, 4)

    shared = run(lived(SharedWorld(3, latency=latency, drop=0.3), tmp_path / "shared"))
    apart, learner = World(3, latency=latency, drop=0.3), WorldLearner(0)
    alone = pipeline_in(
        apart,
        learner,
        tmp_path / "apart",
        prompts=PROMPTS,
        sections={"rollout": {"batch_size": B}, "pipeline": {"mode": "sync"}},
    )
    run(live(apart, alone))
    assert shared.learner.lineage == learner.lineage and len(learner.lineage) < PROMPTS
    assert shared.version == alone.version
    shared_ends, alone_ends = (audit(p.scheduler.ledger.path).ended for p in (shared, alone))
    assert shared_ends == alone_ends


def test_an_evaluation_and_a_checkpoint_are_made_with_engines_awake(tmp_path):
    world = SharedWorld(1)
    p = run(lived(world, tmp_path, eval={"steps": 2}, ckpt={"save_steps": 3}))
    assert all_trained(p) and (tmp_path / "ckpt").is_dir()
    assert world.events.count("learner loads") == PROMPTS // B, "neither moves the learner"


def test_a_step_that_changes_nothing_is_followed_by_no_push_and_the_engines_wake_for_the_next_groups(tmp_path):
    world = SharedWorld(1, actors=1)
    p = run(lived(world, tmp_path, faults={"nan": 1}))
    assert len(p.learner.lineage) == PROMPTS - B
    at = world.events.index("step")
    assert world.events[at + 1 : at + 3] == ["learner offloads", "rollout-0 wakes"]


def test_an_engine_that_dies_in_the_learners_turn_is_started_again_after_it(tmp_path):
    world = SharedWorld(1, actors=2)

    async def kill(p) -> None:
        while "step" not in world.events:
            await asyncio.sleep(1 / 16)
        await asyncio.sleep(1 / 2)
        world.kill(0)

    p = run(lived(world, tmp_path, disturb=kill, learner_s=20.0))
    assert all_trained(p)
    at = world.events.index("step")
    assert world.events.index("rollout-0 loads", at) > world.events.index("learner offloads", at)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill_all", "hang"])
@pytest.mark.parametrize(
    ("during", "turn"),
    [("wait for GPUs", None), ("step", GpuTurn.LEARNING), ("push", None), ("push", GpuTurn.PUSHING)],
)
def test_the_only_engine_is_lost_in_any_turn_and_the_run_goes_on(tmp_path, fault, during, turn):
    """`turn`: that of the GPUs at the strike, None: a switch is under way."""
    world, struck = SharedWorld(1, actors=1, latency=lambda r: r.uniform(0.5, 4)), []

    async def strike(p) -> None:
        while p.version < 3 or p.observer.current_phase != during or p.publisher.time_share.turn is not turn:
            await asyncio.sleep(1 / 32)
        struck.append(p.version)
        getattr(world, fault)(0)

    p = run(lived(world, tmp_path, disturb=strike))
    assert all_trained(p) and struck


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_whenever_an_engine_is_lost_and_whichever_the_memory_holds(tmp_path, seed):
    rng = random.Random(f"colocation/{seed}")
    world = SharedWorld(
        seed,
        actors=rng.choice([1, 2, 3]),
        latency=lambda r: r.choice([0.5, 1, 4]),
        drop=rng.choice([0, 0.3]),
        start_s=rng.choice([0.25, 3]),
    )

    async def trouble(p) -> None:
        for _ in range(6):
            await asyncio.sleep(rng.randrange(1, 200) / 16)
            getattr(world, rng.choice(["kill", "kill_all", "hang", "refuse"]))(rng.randrange(3))

    p = run(
        lived(
            world,
            tmp_path,
            disturb=trouble,
            eval={"steps": rng.choice([-1, 2])},
            ckpt={"save_steps": rng.choice([-1, 3])},
        )
    )
    report = audit(p.scheduler.ledger.path)
    assert report.errors == report.open == [] and report.finished
    assert sorted(p.learner.lineage) == sorted(report.trained)


@pytest.mark.slow
@pytest.mark.parametrize("sixteenths", range(60, 124, 3))
def test_a_stop_in_any_turn_saves_at_the_boundary_and_the_resume_trains_every_prompt_once(tmp_path, sixteenths):
    """Times from the first groups to the second push: sampling, both switches, step, push."""

    async def ask(p) -> None:
        await asyncio.sleep(sixteenths / 16)
        p.stop.request("SIGTERM")

    with pytest.raises(Stopped, match="SIGTERM"):
        run(lived(SharedWorld(1), tmp_path, disturb=ask))
    world = SharedWorld(2)
    p = run(lived(world, tmp_path, resume=True))
    assert all_trained(p)


def test_learner_ranks_that_die_are_started_again_with_the_engines_asleep_and_the_run_goes_on(tmp_path):
    """In the step, in which the engines sleep; and as the weights are to be pushed."""
    world = SharedWorld(1, actors=2)

    async def session() -> tuple[SharedLearner, list[int]]:
        s, restarts, resume = Session(world), [], False
        await world.fleet.start()
        learner = await s.ranks()
        while True:
            p = s.pipeline(learner, tmp_path, ckpt={"save_steps": 2})
            dies = asyncio.create_task(strike(p, learner, len(restarts)))
            try:
                await p.run(resume=resume)
            except* LearnerGone:
                restarts.append(learner.version)
            else:
                await world.fleet.stop()
                assert all_trained(p)
                return learner, restarts
            finally:
                dies.cancel()
                p.scheduler.ledger.close()
            learner, resume = await s.ranks(), True

    async def strike(p, learner: SharedLearner, already: int) -> None:
        if already == 2:
            return
        while p.version < 3 + already:
            await asyncio.sleep(1 / 32)
        if already:
            publish = learner.publish

            async def gone(path):
                learner.publish = publish
                raise LearnerGone("told to die")

            learner.publish = gone
        else:
            learner.faults["die"] = 1

    learner, restarts = run(session())
    assert len(restarts) == 2 and learner.version == PROMPTS // B
