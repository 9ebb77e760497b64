"""The watchdog on a virtual clock: the blocked edge by name, the stacks in a file, a checkpoint before the end."""

from __future__ import annotations

import asyncio
import itertools
import re

import pytest

from openrlhf_tir.errors import StallError
from openrlhf_tir.pipeline.diagnosis import OUTSIDE
from openrlhf_tir.pipeline.scheduler.core import DispatchObstacle
from openrlhf_tir.simulation.virtual_loop import run

from .fakes import FakeLearner, FakePrompts, FakeRollout, pipeline, what_stops


def stalled(p) -> str:
    return what_stops(p, StallError)


def test_groups_that_never_end_are_named_with_their_number_actor_and_environment(tmp_path):
    """B = 2, S = 2: six slots, all rolling for ever."""
    p = pipeline(tmp_path, B=2, stall=50, rollout=FakeRollout(latency=lambda r: 1e6))
    said = stalled(p)
    assert re.search(r" 0/2 .* 50 s, .* 0\b", said)
    assert re.search(r"\b6 .*: 6 .*fake.*echo", said)
    assert re.search(r" 0/0/0 .*50 s \(.*fake.*echo\)", said)
    assert (p.scheduler.slots_taken, p.scheduler.dispatch_obstacle()) == (6, DispatchObstacle.STALENESS)


def test_a_depth_that_wants_no_more_is_named_where_slots_are_free(tmp_path):
    p = pipeline(tmp_path, B=2, depth=3, stall=50, rollout=FakeRollout(latency=lambda r: 1e6))
    assert "pipeline.depth" in stalled(p)
    assert (p.scheduler.slots_taken, p.scheduler.dispatch_obstacle()) == (3, DispatchObstacle.DEPTH)


def test_one_old_group_that_holds_the_gate_is_named(tmp_path):
    """S = 1, B = 1: the first group never ends; the second is trained at version 0; then the gate waits for the first,
    due at version 1."""
    latencies = iter([1e6] + [1.0] * 10)
    said = stalled(pipeline(tmp_path, S=1, B=1, stall=50, rollout=FakeRollout(latency=lambda r: next(latencies))))
    assert re.search(r": 1 .* 1, .*0/0/0", said)
    # 1 s until the second is rolled, 1 s training, 0.1 s push, 1 s until the third is rolled: the last sign of life.
    # Then 50 s.
    assert re.search(r" 0/0/0 .*53 s", said)


def test_a_drain_that_never_ends_is_named(tmp_path):
    """one_step, B = 1: while group 0 trains, group 1 rolls; the push at version 1 waits for it."""
    latencies = iter([1.0] + [1e6] * 10)
    said = stalled(
        pipeline(tmp_path, mode="one_step", B=1, stall=50, rollout=FakeRollout(latency=lambda r: next(latencies)))
    )
    assert re.search(r": 1 [^,]* 50 s, .* 1\b", said)


def test_a_learner_that_hangs_is_named_and_no_checkpoint_is_tried(tmp_path):
    p = pipeline(tmp_path, S=1, B=1, stall=50, learner=FakeLearner(seconds=1e9), prompts=FakePrompts(1))
    said = stalled(p)
    assert OUTSIDE["step"] in said
    assert p.scheduler.dispatch_obstacle() is DispatchObstacle.NO_PROMPT
    assert not (tmp_path / "ckpt").exists()


def test_the_stacks_of_all_tasks_are_in_the_file_down_to_the_innermost_await(tmp_path):
    p = pipeline(tmp_path, B=1, stall=50, rollout=FakeRollout(latency=lambda r: 1e6))
    assert str(tmp_path / "stall.txt") in stalled(p)
    text = (tmp_path / "stall.txt").read_text()
    assert "task 'roll 0/0/0'" in text and "in run_group" in text and "await asyncio.sleep(seconds)" in text
    assert "in next_batch" in text and "in until" in text


def test_a_stall_is_named_though_the_disk_refuses_the_stacks(tmp_path):
    p = pipeline(tmp_path, B=1, stall=50, rollout=FakeRollout(latency=lambda r: 1e6))
    (tmp_path / "stall.txt").mkdir()
    said = stalled(p)
    assert re.search(r"50 s: .*\[Errno 21\].*stall\.txt'\)\. \w+ 0 ", said)


def test_a_stalled_run_leaves_a_checkpoint_from_which_it_goes_on(tmp_path):
    """Three groups roll in a second, then the environment hangs: two steps are trained, none was due to be saved. The
    resume loses nothing."""
    latencies = iter([1.0] * 3 + [1e6] * 20)
    flags = {"B": 1, "S": 1, "prompts": FakePrompts(6), "max_steps": 100}
    stalled(pipeline(tmp_path, stall=50, rollout=FakeRollout(latency=lambda r: next(latencies)), **flags))
    assert (tmp_path / "ckpt" / "latest").read_text() == "step_000003"
    again = pipeline(tmp_path, **flags | {"prompts": FakePrompts(6)})
    run(again.run(resume=True))
    assert sorted(key.prompt for _, key, _ in again.learner.trained) == [3, 4, 5]
    assert again.version == 6


def test_a_phase_that_ends_in_time_is_no_stall(tmp_path):
    p = pipeline(tmp_path, B=1, stall=50, max_steps=3, rollout=FakeRollout(latency=lambda r: 49.0))

    async def seconds():
        await p.run()
        return asyncio.get_running_loop().time()

    assert run(seconds()) > 50


@pytest.mark.parametrize("noticed", [True, False], ids=["the thread saw it", "only the waiter can see it"])
def test_a_suspension_of_the_job_is_no_stall(tmp_path, noticed):
    """An hour in which nothing runs, at 30 s of a group that takes 45; the deadline is 50 s."""

    class Stepping(FakeRollout):
        """Works in steps of a second, as an engine does: a suspension delays what is not done yet."""

        async def run_group(self, key, task):
            for _ in range(44):
                await asyncio.sleep(1.0)
            return await super().run_group(key, task)

    p = pipeline(tmp_path, mode="sync", B=1, stall=50, max_steps=2, rollout=Stepping())

    async def seconds():
        loop = asyncio.get_running_loop()
        loop.call_later(30.0, loop.suspend, 3600.0, noticed)
        await p.run()
        return loop.time()

    assert run(seconds()) > 3600 and p.version == 2


def test_a_run_that_really_stalls_after_a_suspension_is_found(tmp_path):
    latencies = iter([1.0] * 3 + [1e6] * 20)
    p = pipeline(tmp_path, B=1, stall=50, rollout=FakeRollout(latency=lambda r: next(latencies)))
    ended = []

    async def go():
        loop = asyncio.get_running_loop()
        loop.call_later(2.0, loop.suspend, 3600.0)
        try:
            await p.run()
        finally:
            ended.append(loop.time())

    with pytest.raises(ExceptionGroup):
        run(go())
    assert ended[0] - 3600 < 120


def test_when_everything_fails_the_run_stops_after_a_batch_of_failures_and_names_the_last(tmp_path):
    """B = 2, one reissue: the third group in a row that failed for good."""
    said = stalled(pipeline(tmp_path, B=2, retries=1, rollout=FakeRollout(fate=lambda r: "?env_error")))
    assert re.search(r"^3 .*'env_error' .* 2 ", said)


def test_failures_between_groups_that_end_well_stop_nothing(tmp_path):
    """Two of three groups fail for good, two in a row at most."""
    fates = itertools.cycle(["?env_error", "?env_error", ""])
    p = pipeline(
        tmp_path,
        mode="sync",
        B=2,
        retries=0,
        max_steps=5,
        rollout=FakeRollout(latency=lambda r: 1.0, fate=lambda r: next(fates)),
    )
    run(p.run())
    assert p.version == 5 and p.scheduler.ended["failed"] >= 18


def test_a_rescue_while_the_trainer_waits_to_save_takes_one_checkpoint_not_two_in_the_same_directory(tmp_path):
    """A checkpoint of every step, the first takes 80 s to write: the trainer waits to save the second, and the
    watchdog, after 50 s, to rescue the same version. Whoever comes first takes it; the other finds it taken, or takes
    the one that is next by then."""
    takes = []

    class Slow(FakeLearner):
        async def save(self, directory):
            assert not list(directory.iterdir()), "another checkpoint is being written there"
            takes.append(directory.parent.name)
            await super().save(directory)
            await asyncio.sleep(0.5)
            assert (directory / "learner.json").exists(), "another checkpoint was begun over this one"

        async def written(self):
            await asyncio.sleep(80 if len(takes) == 1 else 1)

    said = stalled(pipeline(tmp_path, B=1, S=1, stall=50, save_steps=1, max_steps=20, learner=Slow()))
    saved = int(re.search(r"\b(\d+) \w+ \w+\. [^.]*--resume", said).group(1))
    assert takes == [f".step_{n:06d}.tmp" for n in range(1, saved + 1)] and saved >= 2
    assert (tmp_path / "ckpt" / "latest").read_text() == f"step_{saved:06d}"
