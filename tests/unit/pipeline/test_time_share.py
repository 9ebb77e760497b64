"""Engines and learner take turns on their GPUs: order, who waits for whom, and what is left of a switch that failed.
Virtual clock."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest

from openrlhf_tir.errors import DeadlineMissed, EngineGone, InfraError, LearnerDied
from openrlhf_tir.pipeline.colocation.time_share import GpuTimeShare, GpuTurn
from openrlhf_tir.pipeline.colocation.time_shared import TimeSharedRollout
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.types import GroupKey
from openrlhf_tir.waiting.deadlines import Deadline


class Side:
    """Each call takes a second and is written down; those named in `fails` raise once."""

    def __init__(self, name: str, events: list[str], error: type[Exception] = EngineGone, **fails: int) -> None:
        self.name, self.events, self.fails, self.error = name, events, fails, error

    async def call(self, method, deadline):
        return await getattr(self, method.__name__)()

    def __getattr__(self, call: str):
        async def answer() -> None:
            await asyncio.sleep(1)
            if self.fails.get(call):
                self.fails[call] -= 1
                raise self.error(f"{self.name} died")
            self.events.append(f"{self.name} {call}")

        return answer


class Scene:
    """Two engines and a learner that offloads at the first need of it, as after a start."""

    def __init__(self, *, engines: int = 2, deadline_s: float = 1000.0) -> None:
        self.events: list[str] = []
        self.engines = [Side("ab"[i], self.events) for i in range(engines)]
        self.learner = Side("learner", self.events, InfraError)
        self.time_share = GpuTimeShare(self.engines, Deadline(deadline_s, "a test's"), Deadline(deadline_s, "a test's"))
        self.time_share.learner = self.learner

    async def during(self, turn: str, seconds: float = 0.0, said: str = "") -> None:
        async with getattr(self.time_share, turn)():
            if said:
                self.events.append(said)
            await asyncio.sleep(seconds)


def test_a_step_is_made_with_engines_asleep_and_a_push_with_the_learner_offloaded():
    async def turn() -> list[str]:
        s = Scene()
        await s.during("sampling", said="groups")
        await s.during("learning", said="step")
        await s.during("pushing", said="push")
        await s.during("sampling", said="groups")
        return s.events

    assert run(turn()) == [
        *("groups", "a sleep", "b sleep", "learner onload", "step"),
        *("learner offload", "push", "a wake", "b wake", "groups"),
    ]


def test_a_bug_in_an_engines_sleep_is_raised_and_nobody_steps_on_its_memory():
    async def turn() -> list[str]:
        s = Scene()
        s.engines[1].error, s.engines[1].fails = KeyError, {"sleep": 1}
        with pytest.raises(KeyError):
            await s.during("learning", said="step")
        assert s.time_share.turn is None
        await s.during("learning", said="step")
        return s.events

    assert run(turn()) == ["a sleep", "a sleep", "b sleep", "learner onload", "step"]


def test_a_step_that_is_followed_by_none_needs_no_push_to_give_the_turn_back():
    async def turn() -> list[str]:
        s = Scene(engines=1)
        await s.during("learning", said="step")
        await s.during("learning", said="step")
        await s.during("sampling")
        return s.events

    assert run(turn()) == ["a sleep", "learner onload", "step", "step", "learner offload", "a wake"]


def test_the_learner_waits_for_the_last_group_and_a_group_for_the_end_of_the_step():
    async def turn() -> list[str]:
        s = Scene(engines=1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(s.during("sampling", 5, "group 1"))
            tasks.create_task(s.during("sampling", 9, "group 2"))
            await asyncio.sleep(1)
            tasks.create_task(s.during("learning", 5, "step"))
            await asyncio.sleep(11)
            tasks.create_task(s.during("sampling", 0, "group 3"))
        return s.events

    assert run(turn()) == [
        "group 1", "group 2", "a sleep", "learner onload", "step", "learner offload", "a wake", "group 3",
    ]  # fmt: skip


def test_an_engine_that_starts_in_the_learners_turn_waits_for_its_end_and_for_no_push():
    async def turn() -> list[str]:
        s = Scene(engines=0)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(s.during("learning", 5, "step"))
            await asyncio.sleep(2)
            tasks.create_task(s.during("starting", 1, "starts"))
        return s.events

    assert run(turn()) == ["learner onload", "step", "learner offload", "starts"]


def test_the_learner_waits_for_an_engine_that_loads_and_puts_it_to_sleep_when_it_has_joined():
    async def turn() -> list[str]:
        s = Scene(engines=0)

        async def newcomer() -> None:
            async with s.time_share.starting():
                await asyncio.sleep(9)
            s.engines.append(Side("new", s.events))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(newcomer())
            await asyncio.sleep(1)
            tasks.create_task(s.during("learning", 0, "step"))
        return s.events

    assert run(turn()) == ["new sleep", "learner onload", "step"]


def test_a_group_that_waits_for_an_engine_and_a_learner_that_waits_for_the_group_keep_no_engine_from_starting():
    async def turn() -> list[str]:
        s = Scene(engines=0)
        there = asyncio.Event()

        async def group() -> None:
            async with s.time_share.sampling():
                await there.wait()
                s.events.append("group")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(group())
            await asyncio.sleep(1)
            tasks.create_task(s.during("learning", 0, "step"))
            await asyncio.sleep(1)
            await s.during("starting", 1)
            there.set()
        return s.events

    assert run(turn()) == ["group", "learner onload", "step"]


@pytest.mark.parametrize("phase", ["sleep", "wake"])
def test_an_engine_that_dies_in_a_switch_costs_nobody_else_the_turn(phase):
    async def turn() -> tuple[list[str], GpuTurn | None]:
        s = Scene()
        s.engines[0].fails[phase] = 1
        await s.during("learning", said="step")
        await s.during("sampling", said="group")
        return [e for e in s.events if not e.startswith("a ")], s.time_share.turn

    assert run(turn()) == (
        ["b sleep", "learner onload", "step", "learner offload", "b wake", "group"],
        GpuTurn.SAMPLING,
    )


@pytest.mark.parametrize("phase", ["onload", "offload"])
def test_after_a_rank_died_in_a_switch_everything_is_called_again_for_the_ranks_in_its_place(phase):
    async def turn() -> list[str]:
        s = Scene(engines=1)
        s.learner.fails[phase] = 1
        with suppress(InfraError):
            await s.during("learning")
            await s.during("pushing")
        assert s.time_share.turn is None
        s.events.clear()
        s.time_share.learner = None
        await s.during("learning", said="ranks start")
        s.time_share.learner = s.learner
        await s.during("pushing", said="push")
        return s.events

    assert run(turn()) == ["a sleep", "ranks start", "learner offload", "push"]


def test_what_was_cancelled_in_a_switch_holds_nothing_and_the_next_begins_anew():
    async def turn() -> list[str]:
        s = Scene(engines=1)
        step = asyncio.create_task(s.during("learning"))
        await asyncio.sleep(1.5)
        step.cancel()
        with suppress(asyncio.CancelledError):
            await step
        assert s.time_share.turn is None and not s.time_share.holders.total()
        await s.during("sampling", said="group")
        return s.events

    assert run(turn()) == ["a sleep", "learner offload", "a wake", "group"]


def test_whoever_is_cancelled_in_its_turn_leaves_it_to_the_others():
    async def turn() -> list[str]:
        s = Scene(engines=1)
        group = asyncio.create_task(s.during("sampling", 1e6))
        await asyncio.sleep(1)
        step = asyncio.create_task(s.during("learning", said="step"))
        await asyncio.sleep(1)
        group.cancel()
        await step
        return s.events

    assert run(turn()) == ["a sleep", "learner onload", "step"]


def test_a_turn_that_does_not_come_is_a_missed_deadline_that_names_whose_it_is():
    async def turn() -> None:
        s = Scene(deadline_s=60)
        async with s.time_share.learning():
            await s.during("starting")

    with pytest.raises(DeadlineMissed, match="a test's = 60 s"):
        run(turn())


def test_the_first_push_finds_engines_awake_and_moves_nothing():
    async def turn() -> list[str]:
        s = Scene()
        await s.during("pushing", said="push")
        await s.during("starting", said="starts")
        return s.events

    assert run(turn()) == ["push", "starts"]


def test_a_rank_that_dies_as_the_engines_take_their_turn_is_no_fault_of_the_group():
    """A step that is left out makes no push, so that it is a group that lets the learner go. The loop takes an
    InfraError of a group for the group's own."""

    class Lost:
        @asynccontextmanager
        async def sampling(self):
            raise LearnerDied("rank 1 is gone")
            yield

    async def main():
        with pytest.raises(ExceptionGroup) as e:
            await TimeSharedRollout(None, Lost()).run_group(GroupKey(0, 0), None)
        assert e.value.split(LearnerDied)[1] is None and not isinstance(e.value, InfraError)

    run(main())
