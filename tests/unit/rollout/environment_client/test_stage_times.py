"""When an environment's sessions start and are judged is told for the timeline, from a real client's calls."""

from __future__ import annotations

import pytest

from openrlhf_tir.rollout.environment_client.stage_times import StageTimes

from .scripted_env import Script, client, ok


def test_what_ran_at_once_is_one_span_and_what_took_no_time_is_none():
    times = StageTimes(min_s=1.0)
    for start, end in ((10.0, 14.0), (13.0, 16.0), (20.0, 20.5), (30.0, 31.0)):
        times.add("swe", "start", start, end)
    times.add("swe", "evaluate", 15.0, 18.0)
    assert times.drain() == {
        ("env/swe", "start"): [(10.0, 16.0), (30.0, 31.0)],
        ("env/swe", "evaluate"): [(15.0, 18.0)],
    }
    assert times.drain() == {}


@pytest.mark.parametrize(
    ("last", "evaluated"),
    [
        ({"reward": 1.0, "done": True}, True),
        ({"reward": 0.0, "truncated": True}, True),
        ({"done": True}, False),
        ({"reward": 0.5}, False),
    ],
)
async def test_a_sessions_start_and_its_verdict_are_spans_of_its_environment(last, evaluated):
    async def verdict(request, body):
        return ok(body, **last)

    async def plain(request, body):
        return ok(body)

    async with Script(plain, verdict) as script, client(script) as c:
        c.stage_times.min_s = 0.0
        async with c.session("e", {}) as s:
            await s.reset()
            await s.step("a", step_id=0)
            await s.step("b", step_id=1)
        found = c.stage_times.drain()
    assert set(found) == {("env/e", "start"), *([("env/e", "evaluate")] if evaluated else [])}
    assert all(end > start for [(start, end)] in found.values())
