"""Traced sessions: which tokens of which request end up where in the trajectory, and how a session ends. Token ids are
made up by hand."""

from __future__ import annotations

import asyncio
import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_tir.engines.in_flight import InFlight
from openrlhf_tir.engines.session_trace import RequestTrace
from openrlhf_tir.engines.sessions import CURRENT, AgentOutcome, SessionGone, Sessions
from openrlhf_tir.errors import WeightsUnverified
from openrlhf_tir.rollout.agent_broker import AgentBroker
from openrlhf_tir.types import ENV_VERSION, Completion, Task

TASK = Task("1+1?", "2")


class Letters:
    """Token i is the i-th letter."""

    def encode(self, text):
        return [ord(c) - 97 for c in text]

    encode_prompt = encode

    def decode(self, token_ids):
        return "".join(chr(97 + int(i)) for i in token_ids)


def sampled(*ids: int, version: int = 3, finish: str = "stop") -> Completion:
    n = len(ids)
    return Completion(
        np.array(ids, np.int32),
        np.full(n, -0.5, np.float32),
        np.full(n, version, np.int32),
        Letters().decode(ids),
        finish,
    )


def traced(*requests: tuple[list[int], Completion]) -> RequestTrace:
    trace = RequestTrace()
    for prompt, completion in requests:
        trace.add(prompt, completion)
    return trace


# --- chains


def test_a_prompt_that_goes_on_makes_one_trajectory_of_model_and_environment_segments():
    trace = traced(([0, 1], sampled(2, 3, version=3)), ([0, 1, 2, 3, 7, 8], sampled(4, version=4, finish="length")))
    t = trace.trajectory(5, Letters())
    assert (t.index, t.prompt_ids.tolist(), t.token_ids.tolist()) == (5, [0, 1], [2, 3, 7, 8, 4])
    assert t.is_model.tolist() == [True, True, False, False, True]
    assert t.versions.tolist() == [3, 3, ENV_VERSION, ENV_VERSION, 4]
    assert t.logprobs.tolist() == [-0.5, -0.5, 0, 0, -0.5]
    assert (t.text, t.finish_reason) == ("cdhie", "length")
    assert t.parts == {"requests": 2.0, "chains": 1.0, "branch_tokens": 0.0}


def test_a_prompt_that_is_exactly_what_was_before_has_no_environment_segment():
    t = traced(([0], sampled(1)), ([0, 1], sampled(2))).trajectory(0, Letters())
    assert [s.source for s in t.segments] == ["model", "model"]
    assert t.token_ids.tolist() == [1, 2]


def test_an_edited_history_is_the_prompt_of_a_new_chain_and_nothing_in_it_is_trained_there():
    """Token 3 was sampled, and the client sends 9 in its place: another tokenisation, or thinking left out."""
    trace = traced(([0, 1], sampled(2, 3)), ([0, 1, 2, 9, 7], sampled(4, 5, 6)))
    assert [(c.prompt_ids, c.model_tokens) for c in trace.chains] == [([0, 1], 2), ([0, 1, 2, 9, 7], 3)]
    t = trace.trajectory(0, Letters())
    assert (t.prompt_ids.tolist(), t.token_ids.tolist()) == ([0, 1, 2, 9, 7], [4, 5, 6])
    assert t.parts["branch_tokens"] == 2.0
    (branch,) = t.branches
    assert (branch.prompt_ids.tolist(), branch.token_ids.tolist(), branch.is_model.all()) == ([0, 1], [2, 3], True)
    assert (t.model_tokens, t.branch_tokens, t.oldest_version) == (5, 4, 3)


def test_the_same_prompt_twice_is_two_chains_and_the_next_request_goes_on_from_the_one_it_holds():
    trace = traced(([0], sampled(1)), ([0], sampled(2)), ([0, 2, 5], sampled(3)))
    assert [c.tokens for c in trace.chains] == [[0, 1], [0, 2, 5, 3]]


def test_a_request_goes_on_from_the_longest_chain_that_it_holds_whole():
    trace = traced(([0], sampled(1)), ([0, 1, 5], sampled(2)), ([0], sampled(1)), ([0, 1, 5, 2, 6], sampled(3)))
    assert [c.tokens for c in trace.chains] == [[0, 1, 5, 2, 6, 3], [0, 1]]


def test_of_equal_chains_the_first_is_the_trajectory_and_a_session_without_requests_has_no_tokens():
    assert traced(([0], sampled(1)), ([9], sampled(2))).trajectory(0, Letters()).prompt_ids.tolist() == [0]
    empty = RequestTrace().trajectory(0, Letters())
    assert (len(empty.token_ids), len(empty.prompt_ids)) == (0, 0)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), min_size=1, max_size=6), st.lists(st.integers(0, 2), min_size=1, max_size=3)
        ),
        max_size=8,
    )
)
def test_whatever_a_client_sends_every_sampled_token_is_in_one_chain_behind_exactly_its_prompt(requests):
    trace = traced(*((prompt, sampled(*out)) for prompt, out in requests))
    seen = []
    for chain in trace.chains:
        tokens = list(chain.prompt_ids)
        for between, completion in chain.parts:
            tokens += between
            seen.append((tuple(tokens), tuple(completion.token_ids.tolist())))
            tokens += completion.token_ids.tolist()
        assert tokens == chain.tokens
    assert sorted(seen) == sorted((tuple(prompt), tuple(out)) for prompt, out in requests)
    t = trace.trajectory(0, Letters())
    assert sum(int(s.is_model.sum()) for s in t.sequences) == t.model_tokens == sum(len(out) for _, out in requests), (
        "each is trained once"
    )


# --- sessions


async def test_only_what_is_sampled_within_a_request_of_the_session_is_its():
    session = Sessions(idle_s=60).open(TASK)
    with session.request():
        assert CURRENT.get() is session and session.running == 1
        assert await asyncio.create_task(_current()) is session  # as in the tasks that vLLM's app starts
    assert CURRENT.get() is None and session.running == 0


async def _current():
    return CURRENT.get()


async def test_silence_ends_a_session_but_not_while_a_request_is_being_answered():
    session = Sessions(idle_s=0.02).open(TASK)
    session.alive()
    with session.request():
        await asyncio.sleep(0.05)
        assert not session.outcome.done()
    assert (await asyncio.wait_for(session.outcome, 60)).failed == "agent_lost"


async def test_a_session_that_is_closed_while_it_is_answered_is_not_kept_by_its_timer():
    sessions = Sessions(idle_s=60)
    session = sessions.open(TASK)
    with session.request():
        sessions.close(session)
    kept = weakref.ref(session)
    del session
    gc.collect()
    assert kept() is None


async def test_an_ended_session_takes_no_more_tokens_and_is_not_found():
    sessions = Sessions(idle_s=60)
    session = sessions.open(TASK)
    session.record([0], sampled(1))
    session.end(AgentOutcome(1.0))
    session.record([0, 1], sampled(2))
    assert session.trace.requests == 1
    with pytest.raises(SessionGone, match=session.id):
        sessions.get(session.id)


# --- agents


class Proof:
    """Holds every trajectory back until `decided`."""

    def __init__(self) -> None:
        self.decided, self.refused = asyncio.Event(), False

    async def passed(self, versions_T):
        await self.decided.wait()
        if self.refused:
            raise WeightsUnverified("refused")


@pytest.fixture
async def proof() -> Proof:
    proof = Proof()
    proof.decided.set()
    return proof


@pytest.fixture
async def agents(proof) -> AgentBroker:
    return AgentBroker(Sessions(idle_s=60), Letters(), proof.passed)


async def worked(agents: AgentBroker, said: AgentOutcome, *, asks: bool = True, **options):
    """One task, done by an agent that asks once."""
    running = asyncio.create_task(agents.run(TASK, 2, **options))
    session = await agents.take(1)
    if asks:
        session.record([0], sampled(1))
    session.end(said)
    return running


async def test_the_reward_that_the_agent_says_is_the_trajectorys(agents):
    t = await (await worked(agents, AgentOutcome(0.5, parts={"tests_passed": 2.0})))
    assert (t.index, t.reward, t.failed, t.token_ids.tolist()) == (2, 0.5, None, [1])
    assert t.parts["correct"] == 1.0 and t.parts["tests_passed"] == 2.0 and t.parts["requests"] == 1.0
    assert len(agents.sessions) == 0


@pytest.mark.parametrize(
    ("said", "correct"), [(AgentOutcome(0.0), 0.0), (AgentOutcome(-1.0), 0.0), (AgentOutcome(0.0, correct=True), 1.0)]
)
async def test_correct_is_a_positive_reward_unless_the_agent_says_otherwise(agents, said, correct):
    assert (await (await worked(agents, said))).parts["correct"] == correct


async def test_without_a_reward_the_runs_own_judges(agents):
    t = await (await worked(agents, AgentOutcome()))
    assert t.reward is None and "correct" not in t.parts


async def test_an_agent_that_failed_or_asked_nothing_is_no_reward(agents):
    assert (await (await worked(agents, AgentOutcome(failed="agent_failed")))).failed == "agent_failed"
    silent = await (await worked(agents, AgentOutcome(1.0), asks=False))
    assert silent.failed == "agent_silent" and silent.reward is None


async def test_a_trajectory_waits_for_the_proof_of_its_weights(agents, proof):
    proof.decided.clear()
    running = await worked(agents, AgentOutcome(1.0))
    await asyncio.sleep(0)
    assert not running.done()
    proof.refused = True
    proof.decided.set()
    with pytest.raises(WeightsUnverified):
        await running


@pytest.mark.parametrize("is_lost", [True, False])
async def test_an_answer_of_a_push_that_was_not_proved_costs_the_session_also_if_the_next_push_is_proved(
    agents, is_lost
):
    """The agent had its answer before the verdict, and the version that was pushed again has the same number."""
    running = asyncio.create_task(agents.run(TASK, 2))
    session = await agents.take(1)
    requests = InFlight(2)
    with requests.track("a") as live:
        live.token_ids = [7]
        requests.switch(3)
        live.token_ids = [7, 8] if is_lost else [7]
    session.record([0], sampled(*live.token_ids))
    session.trace.sampled.append(live)
    requests.void(3)
    session.end(AgentOutcome(1.0))
    if is_lost:
        with pytest.raises(WeightsUnverified):
            await running
    else:
        assert (await running).reward == 1.0


async def test_tasks_are_taken_in_order_and_one_whose_group_was_given_up_is_not_offered(agents):
    gone, left = (asyncio.create_task(agents.run(Task(p, ""), 0)) for p in "ab")
    await asyncio.sleep(0)
    assert agents.stats() == {"sessions": 2, "tasks_offered": 2}
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert agents.stats() == {"sessions": 1, "tasks_offered": 1}
    session = await agents.take(1)
    assert session.task.prompt == "b" and agents.stats()["tasks_offered"] == 0
    session.end(AgentOutcome(failed="agent_gave_up"))
    assert (await left).failed == "agent_gave_up"
    assert await agents.take(0.01) is None
