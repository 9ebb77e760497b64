"""The engine model, by hand: one sequence decodes 10 tokens/s, two together 16, prefill 1000 tokens/s."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.emulated_engine import ScaledClock
from openrlhf_tir.simulation.engine_model import EngineModel
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.simulation.workload import EngineSpec


def spec(kv_tokens: int = 1000, max_running: int = 2) -> EngineSpec:
    return EngineSpec(1, max_running, kv_tokens, ((1.0, 10.0), (2.0, 16.0)), 1000.0, 1.0)


def ends(*submissions: tuple, kv_tokens: int = 1000, script=lambda engine, loop: None) -> list[float | None]:
    """When each (at, prompt, new, cached) is done on the virtual clock; None: never, negative: lost then."""

    async def main():
        loop = asyncio.get_running_loop()
        engine, out = EngineModel(spec(kv_tokens), loop), [None] * len(submissions)

        def submit(i, prompt, new, cached):
            engine.submit(
                prompt, new, lambda ok: out.__setitem__(i, loop.time() if ok else -loop.time()), cached_tokens=cached
            )

        for i, (at, *tokens) in enumerate(submissions):
            loop.call_at(at, submit, i, *tokens)
        script(engine, loop)
        await asyncio.sleep(100)
        return out

    return run(main())


def test_a_lone_sequence_takes_its_prefill_and_its_tokens():
    assert ends((0, 100, 20, 0)) == [pytest.approx(0.1 + 2.0)]
    assert ends((0, 100, 20, 100)) == [pytest.approx(2.0)]


def test_two_sequences_share_the_engine_and_the_one_left_speeds_up():
    """8 tokens each in the first second at 16 tokens/s; then 8 more at 10 tokens/s."""
    assert ends((0, 10, 16, 10), (0, 10, 8, 10)) == [pytest.approx(1.8), pytest.approx(1.0)]


def test_a_late_joiner_slows_the_first_down_from_then_on():
    """The first has 10 of 18 tokens after 1 s, then both get 8 a second: 2 s. The second has 8 then, 2 at 10."""
    assert ends((0, 10, 18, 10), (1, 10, 10, 10)) == [pytest.approx(2.0), pytest.approx(2.2)]


def test_a_third_waits_for_a_place():
    assert ends((0, 10, 8, 10), (0, 10, 16, 10), (0, 10, 8, 10)) == [
        pytest.approx(1.0),
        pytest.approx(2.0),
        pytest.approx(2.0),
    ]


def test_prefill_holds_up_everyone():
    """At 1 s a prompt of 500 tokens takes the engine for half a second; then 8 tokens each in 1 s."""
    assert ends((0, 10, 18, 10), (1, 500, 8, 0)) == [pytest.approx(2.5), pytest.approx(2.5)]


def test_a_push_pauses_and_its_prefixes_are_computed_again():
    """5 of 20 tokens by 0.5 s; one second of pause; 105 tokens again at 1000/s; 15 tokens."""

    def push(engine, loop):
        loop.call_at(0.5, engine.pause)
        loop.call_at(1.5, engine.resume)

    assert ends((0, 100, 20, 100), script=push) == [pytest.approx(0.5 + 1.0 + 0.105 + 1.5)]


def test_when_the_cache_is_full_the_youngest_waits_and_is_computed_again():
    """60 + 2 s tokens fill 100 at s = 20, after 2.5 s. The first needs 1 s more; then prefill 50 and 10 tokens."""
    assert ends((0, 30, 30, 30), (0, 30, 30, 30), kv_tokens=100) == [
        pytest.approx(3.5),
        pytest.approx(3.5 + 0.05 + 1.0),
    ]


def test_a_preempted_sequence_is_counted_and_writes_no_token_twice():
    async def main():
        engine = EngineModel(spec(100), asyncio.get_running_loop())
        await asyncio.gather(*(engine.generate(30, 30, cached_tokens=30) for _ in range(2)))
        return engine.stats()

    facts = run(main())
    assert facts["preemptions"] == 1
    assert facts["tokens"] == pytest.approx(60)
    assert facts["busy_s"] == pytest.approx(4.55)
    assert facts["running"] == facts["waiting"] == facts["kv_used"] == 0


def test_a_slow_node_takes_longer():
    assert ends((0, 10, 20, 10), script=lambda engine, loop: loop.call_at(1.0, engine.set_speed, 0.5)) == [
        pytest.approx(1.0 + 2.0)
    ]


def test_a_failing_engine_loses_what_it_holds_and_serves_again():
    submissions = [(0, 10, 20, 10), (0, 10, 20, 10), (0, 10, 20, 10), (2, 10, 10, 10)]
    assert ends(*submissions, script=lambda engine, loop: loop.call_at(1.0, engine.fail)) == [
        -1.0,
        -1.0,
        -1.0,
        pytest.approx(3.0),
    ]


def test_a_cancelled_caller_takes_its_sequence_back():
    async def main():
        loop = asyncio.get_running_loop()
        engine = EngineModel(spec(), loop)
        tasks = [asyncio.create_task(engine.generate(10, 100, cached_tokens=10)) for _ in range(3)]
        loop.call_at(1.0, tasks[0].cancel)
        loop.call_at(1.0, tasks[2].cancel)
        await asyncio.wait(tasks)
        return loop.time(), engine.stats()["tokens"]

    end, tokens = run(main())
    assert end == pytest.approx(1.0 + 9.2)
    assert tokens == pytest.approx(16 + 92)


def test_a_sequence_that_can_never_fit_is_refused():
    async def main():
        EngineModel(spec(100), asyncio.get_running_loop()).submit(90, 10, lambda ok: None)

    with pytest.raises(ValueError, match="kv_tokens = 100"):
        run(main())


def test_the_same_model_runs_on_the_wall_clock_with_scaled_seconds():
    """Two seconds at a fiftieth."""

    async def main():
        loop = asyncio.get_running_loop()
        engine, start = EngineModel(spec(), ScaledClock(loop, 0.02)), loop.time()
        assert await engine.generate(10, 20, cached_tokens=10)
        return loop.time() - start

    assert run(main()) == pytest.approx(0.04)
    assert asyncio.run(main()) >= 0.039


def test_a_sequence_whose_end_is_noticed_late_has_written_no_more_than_it_was_asked_for():
    """20 tokens take 2 s; a busy wall clock has not called back after 5 s, and a push asks."""

    class LateClock:
        now = 0.0

        def time(self) -> float:
            return self.now

        def call_at(self, when, callback, *args):
            return self

        def cancel(self): ...

    clock = LateClock()
    engine = EngineModel(spec(), clock)
    engine.submit(10, 20, lambda ok: None, cached_tokens=10)
    clock.now = 1.0
    assert [written for _, written in engine.in_flight()] == [10]
    clock.now = 5.0
    assert [written for _, written in engine.in_flight()] == [20]
