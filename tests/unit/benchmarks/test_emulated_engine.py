"""The emulated engine by hand: how long it takes, what it says, and what cuts it."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.emulated_engine import EmulatedEngine, Written
from openrlhf_tir.errors import EngineError
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.simulation.workload import EngineSpec
from openrlhf_tir.types import Sampling

SPEC = EngineSpec(1, 4, 10_000, ((1, 10.0), (2, 16.0)), 1000.0, 0.0)
"""One sequence decodes 10 tokens/s, two 8 tokens/s each; prefill 1 ms per token."""


def script(request_id):
    return {
        "long": Written(40, "a </code>", "</code>"),
        "short": Written(10, "b"),
        "again": Written(10, "b", cached=900),
    }[request_id]


async def timed(engine, name, max_tokens=1000, prompt=100):
    c = await engine.generate([1] * prompt, Sampling(max_tokens), request_id=name)
    return c, asyncio.get_running_loop().time()


def test_time_is_prefill_and_decoding_in_emulated_seconds_times_the_scale():
    """100 prompt tokens: 0.1 s; 40 tokens: 4 s. At a scale of 0.5: 2.05 s of the clock."""

    async def main():
        c, at = await timed(EmulatedEngine(SPEC, script, time_scale=0.5, version=3), "long")
        assert at == pytest.approx(2.05) and len(c.token_ids) == 40 and set(c.versions.tolist()) == {3}
        assert (c.text, c.finish_reason, c.stop_reason) == ("a </code>", "stop", "</code>")

    run(main())


def test_two_share_the_engine_and_a_cached_prefix_costs_no_prefill():
    """Prefill of 0.1 + 0.1 s first; then 8 tokens/s each: the short one ends at 0.2 + 10 / 8 = 1.45 s."""

    async def main():
        engine = EmulatedEngine(SPEC, script)
        _, (_, short) = await asyncio.gather(timed(engine, "long"), timed(engine, "again", prompt=1000))
        assert short == pytest.approx(0.2 + 10 / 8)

    run(main())


def test_the_token_limit_cuts_the_answer_and_its_stop():
    async def main():
        c, at = await timed(EmulatedEngine(SPEC, script), "long", max_tokens=20)
        assert at == pytest.approx(2.1) and len(c.token_ids) == 20
        assert (c.text, c.finish_reason, c.stop_reason) == ("a ", "length", None)

    run(main())


def test_a_failed_engine_raises_for_what_it_held():
    async def main():
        engine = EmulatedEngine(SPEC, script)
        task = asyncio.create_task(timed(engine, "long"))
        await asyncio.sleep(1)
        engine.model.fail()
        with pytest.raises(EngineError, match="long"):
            await task

    run(main())
