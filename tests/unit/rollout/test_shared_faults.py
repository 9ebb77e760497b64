"""A fault that a group shares chooses no answer by its length: by hand, by enumeration of every draw and fault time,
and by measurement."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from contextlib import asynccontextmanager

import numpy as np
import pytest

from openrlhf_tir.errors import EngineError, EnvError, EnvLost, EnvTimeout, VerifierError
from openrlhf_tir.rollout.sample_selection import invalidated
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.types import Completion, GroupKey, RewardParts, Task, Trajectory
from tests.unit.rollout.test_episode import PlayedEnv
from tests.unit.rollout.test_group_runner import KEY, runner

IDS = np.zeros(1, np.int32)
REASONS = {
    "v": None,
    "e": "engine_error",
    "L": "env_lost",
    "f": "env_error",
    "t": "timeout",
    "q": "request_refused",
    "d": "deadline",
    "r": "reward_error",
}


def group(text):
    return [None if k == "-" else Trajectory(i, IDS, failed=REASONS[k]) for i, k in enumerate(text)]


@pytest.mark.parametrize(
    ("states", "order", "servers", "lost"),
    [
        ("vvvv", "0123", "aaaa", {}),
        ("vvv-", "012", "aaaa", {}),
        ("vve-", "012", "aaaa", {0: "engine_error", 1: "engine_error", 2: "engine_error", 3: "engine_error"}),
        ("vfvv", "0123", "aaaa", {}),  # one trajectory's own fault: others ended well after it
        ("vvvf", "0123", "aaaa", {}),  # the last one alone: nobody can tell, and it is the likelier reading
        ("vvff", "0123", "aaaa", {i: "env_error" for i in range(4)}),  # whoever was unfinished
        ("vvft", "0132", "aaaa", {i: "timeout" for i in range(4)}),  # the commonest reason, or the first
        ("ffff", "0123", "aaaa", {}),  # nothing to choose from
        ("vff-", "012", "aaaa", {}),  # one was not ended by it: it still runs, or is given up for being slow
        # of two servers one went down: its finished one goes too
        ("vLvv", "0123", "abab", {1: "env_lost", 3: "env_lost"}),
        ("vLv-", "012", "abab", {1: "env_lost", 3: "env_lost"}),
        ("vtvt", "0213", "abab", {i: "timeout" for i in range(4)}),  # all unfinished ones were on b, by chance or not
        ("vfvtvv", "013245", "ababab", {}),
        ("vvqq", "0123", "aaaa", {}),  # too long for the engine, both: they say so of themselves
        ("vvrr", "0123", "aaaa", {}),  # the reward fails on two samples: nothing that they share
        ("vvff", "0123", "    ", {i: "env_error" for i in range(4)}),  # no server known: the group is what they share
    ],
)
def test_a_shared_fault_costs_all_who_shared_it(states, order, servers, lost):
    server_of = {i: s for i, s in enumerate(servers) if s != " "}
    assert invalidated(group(states), [int(i) for i in order], server_of) == lost


class Mortal:
    """Sample i takes `lengths[i]` seconds and tokens. At `dies_at` the engine dies: whoever runs then or comes later
    gets an EngineError."""

    def __init__(self, lengths, dies_at=float("inf")):
        self.lengths, self.dies_at = lengths, dies_at

    async def generate(self, token_ids, sampling, *, request_id):
        n = self.lengths[int(request_id.split("#")[1].split("/")[0])]
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(min(n, self.dies_at - now))
        if now + n > self.dies_at:
            raise EngineError("dead")
        return Completion(
            np.full(n, 97, np.int32), np.zeros(n, np.float32), np.zeros(n, np.int32), "a", "stop", "</answer>"
        )


class AllRight:
    async def score(self, trajectory, task):
        return RewardParts(1.0, True, {})


def trained(draws, n, fault_s, **rollout):
    """Lengths that are trained when the fault comes `fault_s` after the dispatch: attempt after attempt, each with the
    next of `draws`."""

    async def main():
        for attempt, lengths in enumerate(draws):
            dies_at = asyncio.get_running_loop().time() + fault_s if not attempt else float("inf")
            r = runner(
                engine=Mortal(lengths, dies_at),
                rewards=AllRight(),
                n_samples_per_prompt=n,
                min_valid=1,
                drift_check=0,
                **rollout,
            )
            meta, _ = await r.run(GroupKey(0, 0, attempt), Task("Q", "x"))
            if meta.failed is None:
                return tuple(meta.response_tokens), attempt
        raise AssertionError("the last attempt failed too")

    return run(main())


DRAWS = list(itertools.product([1, 2, 4], repeat=2))
"""Every group of two whose lengths are 1, 2 or 4 with equal probability."""


@pytest.mark.parametrize("fault_s", [0.5, 1.5, 3.0])
def test_given_a_fault_at_any_time_the_lengths_that_are_trained_have_the_law_without_it(fault_s):
    """Exact: over all 9 * 9 draws of two attempts, those the fault hit train each of the 9 groups equally often."""
    results = [trained([first, second], 2, fault_s) for first, second in itertools.product(DRAWS, DRAWS)]
    hit = Counter(lengths for lengths, attempt in results if attempt)
    assert set(hit) == set(DRAWS) and len(set(hit.values())) == 1
    assert all(len(lengths) == 2 for lengths, _ in results), "never only those who were quick enough"


@pytest.mark.parametrize("fault_s", [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 9.0])
def test_with_seeds_per_request_the_law_is_the_same_whether_a_fault_comes_or_not(fault_s):
    """The new attempt draws the same numbers: every single group is trained as it would have been."""
    assert [trained([draw, draw], 2, fault_s)[0] for draw in DRAWS] == DRAWS


@pytest.mark.slow
def test_lengths_after_random_engine_deaths_are_those_without_and_the_old_rule_would_have_halved_them():
    """200 groups of 8 log-normal lengths, mean e^4.6 = 99.5 tokens, sd 130; the engine dies at a random moment of the
    longest's life.

    Standard error of the mean over 1,600 lengths: 3.3. Keeping what had finished would have trained lengths of about
    half that mean."""
    rng = random.Random(0)
    sampled, kept, finished = [], [], []
    for _ in range(200):
        draws = [[1 + int(rng.lognormvariate(4.1, 1.0)) for _ in range(8)] for _ in range(2)]
        fault_s = rng.uniform(0, max(draws[0]))
        lengths, attempt = trained(draws, 8, fault_s)
        assert attempt == 1
        kept += lengths
        sampled += draws[1]
        finished += [n for n in draws[0] if n <= fault_s]
    assert kept == sampled
    assert abs(np.mean(kept) - 99.5) < 3 * 3.3
    assert np.mean(finished) < 60


class Servers:
    """Sessions of even samples on server a, of odd ones on b; b goes down at `down_at`. Everybody calls once, when the
    answer is written."""

    def __init__(self, down_at):
        self.down_at, self.opened = down_at, 0

    @asynccontextmanager
    async def session(self, env, task, *, seed):
        played = PlayedEnv()
        played.server = "ab"[self.opened % 2]
        self.opened += 1

        async def step(action, *, step_id):
            if played.server == "b" and asyncio.get_running_loop().time() > self.down_at:
                raise EnvLost("down")
            return await PlayedEnv("1").step(action, step_id=step_id)

        played.step = step
        yield played


class Caller(Mortal):
    """Opens a call, writes it for `lengths[i]` seconds, then answers at once."""

    async def generate(self, token_ids, sampling, *, request_id):
        sample, turn = request_id.split("#")[1].split("/")
        text, stop = [("```python", "```python"), ("\nprint(1)\n```", "```"), ("1</answer>", "</answer>")][int(turn)]
        await asyncio.sleep(self.lengths[int(sample)] if turn == "1" else 0)
        n = len(text)
        return Completion(np.full(n, 97, np.int32), np.zeros(n, np.float32), np.zeros(n, np.int32), text, "stop", stop)


def test_of_two_servers_the_one_that_goes_down_takes_its_short_answers_along_and_the_other_keeps_its_long_ones():
    """Samples 1 and 3 are on b: 1 had finished before the fault, 3 had not. 0 and 2 are on a, whatever their length."""

    async def main():
        down_at = asyncio.get_running_loop().time() + 5
        r = runner(engine=Caller([2, 1, 50, 60]), envs=Servers(down_at), rewards=AllRight(), drift_check=0)
        return await r.run(KEY, Task("Q", "x"))

    meta, whole = run(main())
    assert meta.index == [0, 2] and meta.failures == {"env_lost": 2}
    assert [t.reward for t in whole.trajectories] == [1.0, None, 1.0, None]


@pytest.mark.parametrize("error", [EnvError("sandbox"), EnvTimeout("late"), VerifierError("starved")])
def test_an_outage_that_ends_all_who_are_unfinished_fails_the_group_whatever_it_is(error):
    class WrongAtTheEnd(AllRight):
        async def score(self, trajectory, task):
            if len(trajectory.token_ids) > 2:
                raise error
            return await super().score(trajectory, task)

    async def main():
        return await runner(engine=Mortal([1, 2, 3, 4]), rewards=WrongAtTheEnd(), drift_check=0).run(
            KEY, Task("Q", "x")
        )

    meta, _ = run(main())
    assert meta.failed == error.reason and meta.rewards == []


def test_a_dead_engine_ends_the_group_at_once():
    """The sample that would take an hour more is not waited for, and whoever follows the group sees what it saw: no
    rewrite behind its back."""

    class OneDies(Mortal):
        async def generate(self, token_ids, sampling, *, request_id):
            if request_id.split("#")[1].startswith("1"):
                await asyncio.sleep(3)
                raise EngineError("dead")
            return await super().generate(token_ids, sampling, request_id=request_id)

    seen = []

    async def main():
        start = asyncio.get_running_loop().time()
        meta, _ = await runner(engine=OneDies([1, 0, 3600, 2]), rewards=AllRight(), drift_check=0).run(
            KEY, Task("Q", "x"), on_trajectory=seen.append
        )
        return meta, asyncio.get_running_loop().time() - start

    meta, seconds = run(main())
    assert meta.failed == "engine_error" and meta.failures == {"engine_error": 4} and seconds == 3
    assert [(t.index, t.failed) for t in seen] == [(0, None), (3, None), (1, "engine_error")]
