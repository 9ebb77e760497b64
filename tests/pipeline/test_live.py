"""Live: what the console says of a run on a virtual clock, from before its first update to its end."""

from __future__ import annotations

import asyncio
import io
import re

from rich.console import Console

from openrlhf_tir.pipeline.diagnosis import IN_SHORT
from openrlhf_tir.pipeline.live import Live
from openrlhf_tir.telemetry.progress import Progress
from tests.pipeline.fakes import FakeLearner, FakeRollout, group_of, pipeline, run


def statuses_of(p, *, every_s: float, activity=lambda now: {}) -> list:
    """The status at every `every_s` virtual seconds of a whole run."""

    async def watched():
        loop = asyncio.get_running_loop()
        progress = Progress(10, Console(file=io.StringIO()), clock=loop.time)
        p.observer.progress = progress
        live, found = Live(p.scheduler, p.observer, progress), []
        began = loop.time()

        async def look() -> None:
            while True:
                found.append(live.status(activity(loop.time() - began)))
                await asyncio.sleep(every_s)

        looking = asyncio.create_task(look())
        await p.run()
        looking.cancel()
        return found

    return run(watched())


def test_the_first_update_is_expected_from_the_rate_at_which_groups_are_accepted(tmp_path):
    """One group at a time, 10 s each; a batch of 4. After 25 s two are there: two more, at 12.5 s each."""
    p = pipeline(
        tmp_path,
        rollout=FakeRollout(latency=lambda r: 10.0),
        B=4,
        sampling={"vllm_generate_batch_size": 1},
        max_steps=2,
    )
    found = statuses_of(p, every_s=1.0)
    assert found[0].first_step_s is None and found[0].step == 0 and found[0].needed == 4
    two = next(s for s in found if s.ready == 2)
    assert re.search(r"\b2 \w+ 4\b", two.waits_for) and two.rolling == 1
    assert 18 <= two.first_step_s <= 22
    assert all(s.first_step_s is None for s in found if s.step > 0)
    assert any(s.waits_for.startswith(IN_SHORT["step"]) for s in found)


async def test_until_a_group_rolls_after_a_resume_there_is_no_rate_to_expect_the_first_update_from(tmp_path):
    """Two of four groups were accepted before the stop. The engines are not up yet."""
    before = pipeline(tmp_path, B=4).scheduler
    for _ in range(2):
        group, _ = before.dispatch(now=0.0)
        before.finish_group(group, *group_of(group.key, 0))
    p = pipeline(tmp_path, B=4)
    p.scheduler.restore(before.snapshot())
    live = Live(p.scheduler, p.observer, Progress(10, Console(file=io.StringIO())))
    live.status({})
    await asyncio.sleep(0.01)
    assert (live.status({}).ready, live.status({}).first_step_s) == (2, None)
    p.scheduler.dispatch(now=0.0)
    live.status({})
    await asyncio.sleep(0.01)
    assert live.status({}).first_step_s > 0


def test_counts_are_of_the_run_and_rates_of_the_last_minute(tmp_path):
    """Each second group is dropped; the engines sample 50 tokens a second."""
    fates = iter(["", "too_long"] * 500)
    p = pipeline(tmp_path, rollout=FakeRollout(fate=lambda r: next(fates)), learner=FakeLearner(seconds=1.0), B=2)
    found = statuses_of(
        p, every_s=0.5, activity=lambda now: {"tokens_generated": 50.0 * now, "in_flight/guess": 3.0, "running": 1.0}
    )
    last = found[-1]
    assert (
        last.rolled == last.accepted + last.dropped["too_long"] and last.accepted > 0 and last.dropped["too_long"] > 0
    )
    assert last.in_env == {"guess": 3} and abs(last.tokens_per_s - 50.0) < 1e-6
    assert last.eta_s is not None and last.cycle_s is not None and last.cycle_s >= 1.0
