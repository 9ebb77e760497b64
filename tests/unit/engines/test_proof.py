"""What an engine holds back until the verdict on its weights, and which version a token of a request in flight has."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from openrlhf_tir.engines.in_flight import InFlight
from openrlhf_tir.engines.proof import ProofGate
from openrlhf_tir.errors import WeightsUnverified


def delta(*ids: int, finish: str | None = None):
    """vLLM's CompletionOutput of kind DELTA."""
    logprobs = [{i: SimpleNamespace(logprob=-float(i))} for i in ids]
    return SimpleNamespace(
        token_ids=ids, logprobs=logprobs, text="x" * len(ids), finish_reason=finish, stop_reason=None
    )


async def waits(call) -> asyncio.Task:
    task = asyncio.create_task(call)
    await asyncio.sleep(0)
    return task


async def test_tokens_of_unproved_weights_wait_for_the_verdict_and_older_ones_do_not():
    proof = ProofGate()
    proof.expect(4)
    await proof.passed(np.array([2, 3]))
    held = await waits(proof.passed(np.array([3, 4])))
    assert not held.done()
    proof.proved(4)
    await held


async def test_a_verdict_on_an_older_push_says_nothing_about_the_newer():
    proof = ProofGate()
    proof.expect(4)
    proof.expect(5)
    held = await waits(proof.passed(np.array([5])))
    proof.proved(4)
    await asyncio.sleep(0)
    assert not held.done()
    proof.proved(5)
    await held


async def test_a_push_that_another_one_replaced_withholds_nothing_any_more():
    proof = ProofGate()
    proof.expect(4)
    proof.void()  # the other push is one without a canary: nothing is to be proved
    async with asyncio.timeout(60):
        await proof.passed(np.array([4]))


async def test_a_refused_version_fails_what_waited_and_all_that_comes_after():
    proof = ProofGate()
    proof.expect(4)
    held = await waits(proof.passed(np.array([4])))
    proof.refuse("5 nats")
    with pytest.raises(WeightsUnverified, match="5 nats"):
        await held
    with pytest.raises(WeightsUnverified):
        await proof.passed(np.array([3]))


def test_a_requests_tokens_change_version_where_it_stood_at_the_switch():
    requests = InFlight(version=2)
    with requests.track("early") as early, requests.track("late") as late:
        early.extend(delta(7, 8))
        requests.switch(3)
        early.extend(delta(9))
        late.extend(delta(5))
        requests.switch(4)  # nothing was sampled by 3 after this in `late`
        last = delta(6, finish="stop")
        early.extend(last)
        c = early.completion(last)
        assert late.completion(last).versions.tolist() == [3]
    assert (c.token_ids.tolist(), c.versions.tolist(), c.logprobs.tolist()) == (
        [7, 8, 9, 6],
        [2, 2, 3, 4],
        [-7, -8, -9, -6],
    )
    assert c.finish_reason == "stop"


def test_tokens_are_counted_of_requests_that_run_and_that_have_ended():
    requests = InFlight(version=0)
    with requests.track("a") as a:
        a.extend(delta(1, 2))
        assert (requests.tokens, requests.request_ids, len(requests)) == (2, ["a"], 1)
    assert (requests.tokens, len(requests)) == (2, 0)


def test_a_switch_before_the_first_token_leaves_none_to_the_old_version():
    requests = InFlight(version=0)
    with requests.track("a") as a:
        requests.switch(1)
        a.extend(delta(3))
        assert a.completion(delta()).versions.tolist() == [1]
