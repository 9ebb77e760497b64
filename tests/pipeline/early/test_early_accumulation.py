"""A batch whose first groups are accumulated while its last still roll, on a virtual clock."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_tir.errors import Stopped
from openrlhf_tir.pipeline.lane.pace import left_s
from openrlhf_tir.pipeline.lane.sizing import Cluster, best_size
from openrlhf_tir.pipeline.ledger.ledger import audit
from openrlhf_tir.pipeline.scheduler import InFlightGroup, StalenessRule
from openrlhf_tir.pipeline.scheduler.early_accumulation import EarlyAccumulation
from openrlhf_tir.pipeline.scheduler.learner_timing import LearnerTiming
from openrlhf_tir.simulation.parts import SimulatedLearner
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.types import GroupKey, GroupState, StepReport, TrainBatch

from ..fakes import FakeLearner, FakePrompts, FakeRollout, MemoryMetrics, ages, pipeline, seconds_of

# --- the condition, by hand


def can_take(
    version: int, batch_groups: int, part: list[int], rolling: list[int], places: int, updates: int = 1
) -> bool:
    rule = StalenessRule(batch_groups, updates)
    return EarlyAccumulation(rule, part_groups=len(part)).may_take(version, part, rolling, places)


def groups_due(deadlines: list[int]) -> list[InFlightGroup]:
    """Groups with these training deadlines; without batches ahead a group is due at the version of its dispatch."""
    return [InFlightGroup(GroupKey(0, i), sequence_number=i, version=due) for i, due in enumerate(deadlines)]


def test_a_part_may_not_take_the_places_of_groups_that_are_due_before_it():
    """B = 4 at version 3; two of the batch would be taken of groups due at 4, which leaves two places."""
    assert can_take(3, 4, [4, 4], [3, 3], places=2)
    assert not can_take(3, 4, [4, 4], [3, 3, 3], places=2)
    assert can_take(3, 4, [4, 4], [3, 3] + [4] * 40, places=2)  # due no earlier: a place less, and a group less
    assert can_take(3, 4, [5, 5], [4] * 6, places=2)
    assert not can_take(3, 4, [5, 5], [4] * 7, places=2)
    assert can_take(3, 4, [3, 3], [3, 3, 3], places=2)  # the third is surplus in any case


def test_the_gate_and_the_surplus_count_the_places_that_are_left():
    """B = 4, three of which are taken: one place at version 3, four at 4."""
    rule = StalenessRule(batch_groups=4)
    assert rule.gate_is_open(3, [3], [4] * 4, places=1)
    assert not rule.gate_is_open(3, [3], [4] * 5, places=1)
    assert not rule.gate_is_open(3, [3, 4], [4] * 4, places=1)
    assert rule.surplus(3, groups_due([3, 3, 4, 4, 4, 4]), places=1) == (1,)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    batch_groups=st.integers(1, 6),
    updates=st.integers(1, 3),
    buffered=st.lists(st.integers(0, 9), max_size=30),
    rolling=st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=30),
    taken=st.integers(0, 5),
    part=st.integers(1, 6),
)
def test_whatever_is_accepted_a_part_that_may_be_taken_pushes_no_group_out(
    batch_groups, updates, buffered, rolling, taken, part
):
    """As many are surplus after it as without it, and where all had their places the gate opens once nothing rolls."""
    rule = StalenessRule(batch_groups, updates)
    buffered.sort()
    places = batch_groups - min(taken, batch_groups - 1)
    part = min(part, len(buffered))
    rolling_deadlines = [due for due, _ in rolling]
    if part >= places or not can_take(0, batch_groups, buffered[:part], rolling_deadlines, places - part, updates):
        return
    accepted = [due for due, is_accepted in rolling if is_accepted]
    surplus_without = rule.surplus(0, groups_due(sorted(buffered + accepted)), places)
    surplus_with = rule.surplus(0, groups_due(sorted(buffered[part:] + accepted)), places - part)
    assert len(surplus_with) == len(surplus_without)
    assert rule.gate_is_open(0, buffered[part:] + accepted, [], places=places - part)


# --- what knows of the learner's time


@pytest.mark.parametrize(
    ("stepping", "begun_s", "deadline", "left"),
    [
        (False, 0.0, 3, 40.0),  # a batch of 50 s, of which 10 remain for the step: 40 come before it
        (False, 30.0, 3, 10.0),
        (False, 45.0, 3, 0.0),
        (False, 30.0, 5, 10.0 + 2 * 60),
        (True, 0.0, 4, 6.0 + 40.0),  # the step under way began 4 s ago; then the next batch's first groups
        (True, 0.0, 5, 6.0 + 40.0 + 60),
    ],
)
def test_the_gate_asks_for_a_group_once_the_groups_before_it_are_accumulated(stepping, begun_s, deadline, left):
    timing = LearnerTiming(step_s=10.0, work_s=50.0, accumulated_s=begun_s, step_started_at=100.0)
    scheduler = SimpleNamespace(version=3, rule=StalenessRule(batch_groups=8), timing=timing, stepping=stepping)
    assert left_s(scheduler, deadline, 60.0, 104.0) == pytest.approx(left)


def test_a_lane_is_planned_for_the_window_that_early_accumulation_leaves():
    """The longest of a batch has the time of what the learner does before the batch is whole, and steps follow each
    other no faster than the learner makes them."""
    positions_K, survival_K = np.linspace(0, 1000, 11), np.linspace(1, 0.01, 11)

    def period(step_s: float, before_s: float, ahead: int = 1) -> float:
        of = Cluster(2, 64, 32.0, step_s, ahead, 0.05, 0.001, before_s)
        return best_size(of, positions_K, survival_K, 1000.0, 0).period_s

    assert 30.0 < period(10.0, 20.0) < period(30.0, 0.0)
    assert period(10.0, 20.0, ahead=16) == 30.0


async def test_a_simulated_part_takes_its_share_and_the_step_the_rest():
    learner = SimulatedLearner(0.08, batch_groups=8)
    items = [SimpleNamespace(payload={0: 3}, meta=SimpleNamespace(trained_tokens=3)) for _ in range(8)]

    def batch(of: list) -> TrainBatch:
        return TrainBatch(0, of, {})

    await learner.accumulate(batch(items[:6]))
    assert learner.busy_s == pytest.approx(0.06)
    report = await learner.step(batch(items[6:]))
    assert (learner.busy_s, report.seconds, report.trained_tokens) == (pytest.approx(0.08), pytest.approx(0.02), 24)
    assert learner.staleness == {0: 24}
    assert (await learner.step(batch(items))).seconds == pytest.approx(0.08)


# --- the loop


class Scripted(FakeRollout):
    """Group i takes `seconds[i]`, later ones a second."""

    def __init__(self, seconds: list[float]) -> None:
        left = iter(seconds)
        super().__init__(latency=lambda r: next(left, 1.0))


class Learner(FakeLearner):
    """A step of 8 s, 1 s of which is for each group; tells the sizes of its parts."""

    def __init__(self) -> None:
        super().__init__(seconds=0.0)
        self.calls: list[tuple[str, int]] = []

    async def accumulate(self, part):
        await asyncio.sleep(len(part.items))
        self.calls.append(("part", len(part.items)))
        await super().accumulate(part)

    async def step(self, batch):
        await asyncio.sleep(len(batch.items))
        self.calls.append(("step", len(batch.items)))
        return await super().step(batch)


LONG = [1.0] * 7 + [20.0]
"""Of eight groups seven take a second and one twenty."""


def early(directory, seconds=LONG, **flags):
    return pipeline(
        directory,
        **{"B": 8, "S": 1, "early": "on", "learner": Learner(), "rollout": Scripted(seconds), "max_steps": 1} | flags,
    )


def test_the_step_waits_for_the_longest_and_the_learner_does_not(tmp_path):
    """S = 1, depth 8: the batch is whole at 20.1 s. Six of its groups are accumulated by then, one stays for the
    step with the last."""
    p = early(tmp_path / "early", depth=8)
    metrics = p.observer.metrics
    assert seconds_of(p) == pytest.approx(0.1 + 20 + 2 + 0.1)
    assert p.learner.calls == [("part", 1)] * 6 + [("step", 2)]
    assert sorted(key.prompt for _, key, _ in p.learner.trained) == list(range(8)) and p.version == 1
    assert "accumulate_s" in metrics.rows[1]
    late = early(tmp_path / "late", depth=8, early="off")
    assert seconds_of(late) == pytest.approx(0.1 + 20 + 8 + 0.1) and late.learner.calls == [("step", 8)]


def test_what_all_of_a_batch_takes_and_what_its_step_takes_are_told_apart(tmp_path):
    p = early(tmp_path, depth=8)
    run(p.run())
    assert (p.scheduler.timing.step_s, p.scheduler.timing.work_s) == (pytest.approx(2.1), pytest.approx(8.1))


def test_an_engine_may_join_between_two_parts(tmp_path):
    """The lock is free while the learner waits for the next groups, and no part is taken while another holds it."""
    p = early(tmp_path, [1.0] * 4 + [9.0] * 4, depth=8)
    held, seen = asyncio.Lock, []

    async def go():
        lock = held()
        p.publisher.exclusive_learner = lambda: lock
        running = asyncio.create_task(p.run())
        await asyncio.sleep(6.0)  # three parts are done, the fourth group stays for the step
        assert len(p.scheduler.current_batch) == 3 and not lock.locked() and not p.scheduler.accumulating
        async with lock:
            await asyncio.sleep(5.0)
            seen.append((len(p.scheduler.current_batch), len(p.scheduler.buffered)))
        await running

    run(go())
    assert seen == [(3, 5)] and sum(n for _, n in p.learner.calls) == 8


@pytest.mark.parametrize("when", [0.5, 1.5, 3.3, 7.7, 12.0, 20.5, 21.9, 24.0])
def test_a_run_that_stops_between_two_parts_trains_every_prompt_once(tmp_path, when):
    """What was accumulated is void; its groups are buffered in the checkpoint."""
    flags = {"prompts": FakePrompts(24), "max_steps": 100, "S": 2, "save_steps": 1}
    first = early(tmp_path, **flags)

    async def go():
        asyncio.get_running_loop().call_later(when, first.stop.request, "SIGTERM")
        with pytest.raises(Stopped):
            await first.run()

    run(go())
    second = early(tmp_path, **flags | {"prompts": FakePrompts(24)})
    run(second.run(resume=True))
    report = audit(tmp_path / "ledger.jsonl")
    assert report.errors == report.open == [] and sorted(report.trained) == [(0, i) for i in range(24)]
    lived = [key for version, key, _ in first.learner.trained if version < (first.saver.last_snapshot or (0,))[0]]
    assert len({*lived, *(key for _, key, _ in second.learner.trained)}) == 24


def test_a_stop_waits_for_the_part_that_is_being_accumulated(tmp_path):
    """Asked at 3.5 s, in the third part, which ends at 4.1 s: a checkpoint would have to wait for the learner."""
    p = early(tmp_path, depth=8)

    async def go():
        loop = asyncio.get_running_loop()
        loop.call_later(3.5, p.stop.request, "SIGTERM")
        with pytest.raises(Stopped):
            await p.run()
        return loop.time()

    assert run(go()) == pytest.approx(4.1) and p.learner.calls == [("part", 1)] * 3
    (_, rows) = p.saver.checkpoints.read(p.saver.checkpoints.latest())
    assert len(rows) == 7  # three of them in hand; the eighth rolls


def test_a_gradient_that_is_not_finite_fails_the_groups_of_all_parts(tmp_path):
    class Bad(Learner):
        async def step(self, batch):
            await super().step(batch)
            self.version -= 1
            return StepReport(self.version, {"grad_norm": float("nan")}, 1.0, 0)

    p = early(tmp_path, learner=Bad(), prompts=FakePrompts(8), max_steps=10)
    run(p.run())
    assert p.scheduler.ended[GroupState.FAILED] == 8 and p.version == 0 and p.scheduler.timing.accumulated_s == 0
    p.scheduler.check()


def test_the_end_of_the_prompts_leaves_a_group_for_the_last_step(tmp_path):
    """Ten prompts, of which one fails for good: the second batch has one group, which is stepped on."""
    metrics = MemoryMetrics()
    p = early(tmp_path, [1.0] * 8 + [1.0, 9.0], prompts=FakePrompts(10), max_steps=10, metrics=metrics)
    run(p.run())
    assert sorted(metrics.rows) == [1, 2] and len(p.learner.trained) == 10
    assert all(n for _, n in p.learner.calls)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    S=st.integers(1, 4),
    B=st.sampled_from([2, 3, 8, 17]),
    push=st.integers(1, 3),
    auto=st.booleans(),
    drop=st.sampled_from([0, 1, 3]),
)
def test_with_parts_no_token_is_older_than_S_and_nothing_deadlocks(tmp_path_factory, seed, S, B, push, auto, drop):
    """A fixed depth, as many as staleness allows, makes no surplus whatever is accepted."""
    fates = ["accuracy_high"] * drop + [""] * 3 + ["!engine"]
    rollout = FakeRollout(seed, latency=lambda r: r.choice([0.1, 1.0, 9.0, 30.0]), fate=lambda r: r.choice(fates))
    p = pipeline(
        tmp_path_factory.mktemp("run"),
        S=S,
        B=B,
        depth="auto" if auto else (S + 1) * B,
        early="on",
        push_every=min(push, S + 1),
        rollout=rollout,
        learner=FakeLearner(),
        prompts=FakePrompts(60),
        max_steps=1000,
        endless=True,
    )
    run(p.run())
    assert max(ages(p.learner), default=0) <= S
    assert auto or not audit(p.scheduler.ledger.path).ended["requeued(surplus)"]
    p.scheduler.check()
    trained = [key.prompt for _, key, _ in p.learner.trained]
    assert len(trained) == len(set(trained))
    assert sum(p.scheduler.ended[end] for end in (GroupState.TRAINED, GroupState.FILTERED, GroupState.FAILED)) == 60
