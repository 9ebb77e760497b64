"""The message queue on a virtual clock: when a batch goes, whose turn it is, what is refused; nothing is lost."""

from __future__ import annotations

import asyncio
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_tir.errors import EngineError, QueueFull
from openrlhf_tir.rollout.fair_queue import FairQueue
from openrlhf_tir.rollout.request_queue import RequestQueue
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.telemetry.histogram import count, histogram, mean, quantile
from openrlhf_tir.types import Completion, Sampling

DONE = Completion(np.array([1]), np.zeros(1), np.zeros(1), "x", "stop")


class LoggingEngine:
    """Answers after `seconds`; remembers who came when."""

    def __init__(self, seconds=1.0):
        self.seconds, self.arrivals, self.cancelled = seconds, [], 0

    async def generate(self, token_ids, sampling, *, request_id):
        self.arrivals.append((request_id, round(asyncio.get_running_loop().time(), 6)))
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return DONE

    @property
    def order(self):
        return [name for name, _ in self.arrivals]


def ask(engine, name):
    return asyncio.create_task(engine.generate([1], Sampling(8), request_id=name))


def test_without_a_wait_a_request_passes_straight_through():
    async def main():
        engine = LoggingEngine()
        queue = RequestQueue(engine)
        await ask(queue, "a")
        assert engine.arrivals == [("a", 0.0)] and count(queue.batch_sizes) == 0

    run(main())


def test_a_batch_goes_when_its_first_request_has_waited_long_enough():
    async def main():
        engine = LoggingEngine()
        queue = RequestQueue(engine, max_wait_ms=20)
        first = ask(queue, "a")
        await asyncio.sleep(0.015)
        assert queue.waiting == 1 and queue.age_s == pytest.approx(0.015)
        await asyncio.gather(first, ask(queue, "b"))
        assert engine.arrivals == [("a", 0.02), ("b", 0.02)]
        assert count(queue.batch_sizes) == 1 and mean(queue.batch_sizes) == 2

    run(main())


def test_a_full_batch_goes_at_once():
    async def main():
        engine = LoggingEngine()
        queue = RequestQueue(engine, max_wait_ms=20, max_batch=2)
        await asyncio.gather(*[ask(queue, n) for n in "abc"])
        assert sorted(engine.arrivals) == [("a", 0.0), ("b", 0.0), ("c", 0.02)]

    run(main())


def test_environments_gather_by_themselves():
    """Two of 'search' fill its batch of two; the lone request of 'python' waits its 20 ms."""

    async def main():
        engine = LoggingEngine()
        queue = RequestQueue(engine, max_wait_ms=20, max_batch=2)
        python, search = queue.of_group("python", "g"), queue.of_group("search", "h")
        await asyncio.gather(ask(python, "p"), ask(search, "s"), ask(search, "t"))
        assert sorted(engine.arrivals) == [("p", 0.02), ("s", 0.0), ("t", 0.0)]

    run(main())


def test_a_long_group_does_not_block_a_short_one():
    """One place at the engine. Group A queues five requests before B's two: they take turns."""

    async def main():
        engine = LoggingEngine()
        queue = RequestQueue(engine, max_running=1)
        a, b = queue.of_group("e", "A"), queue.of_group("e", "B")
        await asyncio.gather(*[ask(a, f"a{i}") for i in range(5)], *[ask(b, f"b{i}") for i in range(2)])
        assert engine.order == ["a0", "a1", "b0", "a2", "b1", "a3", "a4"]

    run(main())


def test_the_queue_is_bounded_and_says_when_to_come_again():
    async def main():
        queue = RequestQueue(LoggingEngine(100), max_running=1, max_queue=2)
        tasks = [ask(queue, n) for n in "abc"]
        await asyncio.sleep(1)
        assert queue.waiting == 2
        with pytest.raises(QueueFull, match=r"^2 .* 1 .* 2\.") as refused:
            await queue.generate([1], Sampling(8), request_id="d")
        assert refused.value.retry_after_s >= 1
        again = pickle.loads(pickle.dumps(refused.value))
        assert (str(again), again.retry_after_s) == (str(refused.value), refused.value.retry_after_s)
        await asyncio.gather(*tasks)

    run(main())


def test_retry_after_follows_the_waits_that_were_seen():
    """One place, 10 s per request: 200 queued requests waited ten minutes on average, and Retry-After ends at its cap
    of 60 s."""

    async def main():
        queue = RequestQueue(LoggingEngine(10), max_running=1)
        await asyncio.gather(*[ask(queue, str(i)) for i in range(200)])
        with pytest.raises(QueueFull) as refused:
            queue.check_room(5000)
        assert refused.value.retry_after_s == 60

    run(main())


@pytest.mark.parametrize("max_wait_ms", [0, 20])
def test_a_cancelled_request_leaves_at_once_and_gives_its_place_back(max_wait_ms):
    async def main():
        engine = LoggingEngine()
        queue = RequestQueue(engine, max_wait_ms=max_wait_ms, max_running=1)
        tasks = [ask(queue, n) for n in "abc"]
        await asyncio.sleep(0.5)  # a decodes, b and c wait
        tasks[1].cancel()
        await asyncio.sleep(0)
        assert queue.waiting == 1
        tasks[0].cancel()
        await asyncio.sleep(0)
        await tasks[2]
        assert engine.order == ["a", "c"] and engine.cancelled == 1
        assert (queue.running, queue.waiting) == (0, 0)

    run(main())


@pytest.mark.parametrize("max_wait_ms", [0, 20])
def test_one_that_is_aborted_while_it_waits_leaves_with_nothing_and_one_that_runs_is_the_engines(max_wait_ms):
    class Stopping(LoggingEngine):
        async def abort(self, request_id):
            self.aborted = request_id

        def progress(self):
            return {"a": 7}

    async def main():
        engine = Stopping()
        queue = RequestQueue(engine, max_wait_ms=max_wait_ms, max_running=1)
        tasks = [ask(queue, "a")]
        await asyncio.sleep(0.5)
        tasks += [ask(queue, n) for n in "bcd"]
        for wait_s, name in ((0.0, "b"), (0.1, "c")):  # while it is gathered, and when it is ready
            await asyncio.sleep(wait_s)
            await queue.abort(name)
        b, c = await asyncio.gather(*tasks[1:3])
        assert (
            (b.finish_reason, len(b.token_ids), b.text)
            == (c.finish_reason, len(c.token_ids), c.text)
            == ("abort", 0, "")
        )
        await queue.abort("a")
        assert engine.aborted == "a" and queue.progress() == {"a": 7}
        await asyncio.gather(*tasks)
        assert engine.order == ["a", "d"] and (queue.running, queue.waiting) == (0, 0)

    run(main())


@pytest.mark.parametrize("max_wait_ms", [0, 20])
@pytest.mark.parametrize("cancelled", [False, True])
def test_one_that_is_aborted_between_its_place_and_the_engine_never_comes_there(max_wait_ms, cancelled):
    class Stopping(LoggingEngine):
        def __init__(self):
            super().__init__()
            self.aborted = []

        async def abort(self, request_id):
            self.aborted.append(request_id)

        def progress(self):
            return {}

    async def main():
        engine = Stopping()
        queue = RequestQueue(engine, max_wait_ms=max_wait_ms, max_running=1)

        async def after(seconds, name):
            await asyncio.sleep(seconds)
            return await queue.generate([1], Sampling(8), request_id=name)

        b, c = (asyncio.create_task(after(*when)) for when in ((0.5, "b"), (0.6, "c")))
        await queue.generate([1], Sampling(8), request_id="a")
        assert (queue.running, queue.waiting, b.done()) == (1, 1, False), "b has the place, and has not run since"
        await queue.abort("b")
        if cancelled:
            b.cancel()
        ended, _ = await asyncio.gather(b, c, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError) if cancelled else ended.finish_reason == "abort"
        assert engine.order == ["a", "c"] and engine.aborted == [], "its place is the next one's"
        assert (queue.running, queue.waiting) == (0, 0)

    run(main())


def test_one_that_is_aborted_and_then_cancelled_gives_back_no_place_that_it_never_had():
    async def main():
        queue = RequestQueue(LoggingEngine(), max_running=1)
        a, b = ask(queue, "a"), ask(queue, "b")
        await asyncio.sleep(0.5)
        await queue.abort("b")
        b.cancel()
        await asyncio.sleep(0)
        assert b.cancelled() and (queue.running, queue.waiting) == (1, 0)
        await a

    run(main())


def test_a_broken_engine_gives_its_places_back():
    class Broken:
        async def generate(self, *args, **kwargs):
            raise EngineError("gone")

    async def main():
        queue = RequestQueue(Broken(), max_running=1)
        faults = await asyncio.gather(*[ask(queue, n) for n in "abc"], return_exceptions=True)
        assert [type(f) for f in faults] == [EngineError] * 3 and queue.running == 0

    run(main())


@pytest.mark.slow
@given(
    script=st.lists(st.tuples(st.integers(0, 3), st.floats(0, 0.05), st.none() | st.floats(0, 0.1)), max_size=30),
    max_wait_ms=st.sampled_from([0, 5, 20]),
    max_batch=st.integers(1, 4),
    max_running=st.integers(1, 4),
)
def test_whoever_comes_and_goes_every_request_is_answered_or_gone_and_the_bounds_hold(
    script, max_wait_ms, max_batch, max_running
):
    """(group, pause before it comes, seconds after which its caller gives up) per request."""

    class Crowded(LoggingEngine):
        inside = most = 0

        async def generate(self, *args, **kwargs):
            self.inside += 1
            self.most = max(self.most, self.inside)
            try:
                return await super().generate(*args, **kwargs)
            finally:
                self.inside -= 1

    async def main():
        engine = Crowded(0.02)
        queue = RequestQueue(engine, max_wait_ms=max_wait_ms, max_batch=max_batch, max_running=max_running)
        tasks = []
        for i, (group, pause, patience) in enumerate(script):
            await asyncio.sleep(pause)
            tasks.append(ask(queue.of_group(f"env{group % 2}", group), str(i)))
            if patience is not None:
                asyncio.get_running_loop().call_later(patience, tasks[-1].cancel)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for (_, _, patience), result in zip(script, results, strict=True):
            assert result is DONE or (patience is not None and isinstance(result, asyncio.CancelledError))
        assert engine.most <= max_running
        assert (queue.running, queue.waiting, queue._gathering, bool(queue._ready)) == (0, 0, {}, False)

    run(main())


def test_groups_of_a_fair_queue_take_turns_and_removal_keeps_them():
    queue = FairQueue()
    for item in ("a1", "a2", "a3", "b1", "c1"):
        queue.push(item[0], item)
    queue.remove("a", "a2")
    queue.remove("c", "c1")
    assert [queue.pop() for _ in range(3)] == ["a1", "b1", "a3"] and not queue
    with pytest.raises(KeyError):
        queue.pop()


def test_a_histogram_counts_into_its_buckets():
    h = histogram("waits", "how long", (1.0, 2.0, 5.0))
    assert (count(h), mean(h), quantile(h, 0.5)) == (0, 0.0, 0.0)
    for value in (0.5, 1.0, 1.5, 7.0):
        h.observe(value)
    assert count(h) == 4 and mean(h) == 2.5
    assert (quantile(h, 0.5), quantile(h, 0.75), quantile(h, 0.99)) == (1.0, 2.0, float("inf"))
