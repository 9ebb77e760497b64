"""Groups on fakes: faults stay out of the statistics, deadlines close a group, too few valid trajectories fail it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import EnvError, FilterError, RequestRefused, VerifierError
from openrlhf_tir.rollout.group_runner import EvalMode, GroupRunner
from openrlhf_tir.simulation import virtual_loop
from openrlhf_tir.types import KEEP, Completion, GroupKey, RewardParts, Task, Verdict

from .test_episode import CharCodec, PlayedEnv

KEY = GroupKey(0, 0)


class IndexEngine:
    """Sample i answers with i characters after `delays[i]` seconds. `given_up`: those that were cancelled before."""

    def __init__(self, delays=()):
        self.delays = dict(enumerate(delays))
        self.given_up = set()

    async def generate(self, token_ids, sampling, *, request_id):
        i = int(request_id.split("#")[1].split("/")[0])
        try:
            await asyncio.sleep(self.delays.get(i, 0))
        except asyncio.CancelledError:
            self.given_up.add(i)
            raise
        n = i + 1
        return Completion(
            np.full(n, 97, np.int32), np.zeros(n, np.float32), np.full(n, 5, np.int32), "a" * n, "stop", "</answer>"
        )


class RefusingEngine(IndexEngine):
    """Has no answer to the samples of `refused`."""

    def __init__(self, refused):
        super().__init__()
        self.refused = refused

    async def generate(self, token_ids, sampling, *, request_id):
        if int(request_id.split("#")[1].split("/")[0]) in self.refused:
            raise RequestRefused("longer than the model's context")
        return await super().generate(token_ids, sampling, request_id=request_id)


class Envs:
    def __init__(self, broken=()):
        self.broken, self.made = set(broken), -1

    @asynccontextmanager
    async def session(self, env, task, *, seed):
        self.made += 1
        if self.made in self.broken:
            raise EnvError("down")
        yield PlayedEnv()


class LongIsCorrect:
    def __init__(self, broken=()):
        self.broken = set(broken)

    async def score(self, trajectory, task):
        if trajectory.index in self.broken:
            raise VerifierError("died")
        correct = len(trajectory.token_ids) >= 3
        return RewardParts(float(correct), correct, {"used_code": float(trajectory.index == 0), "format_ok": 1.0})


def runner(engine=None, envs=None, rewards=None, judge=lambda g: Verdict(True), **rollout):
    cfg = Config.model_validate(
        {"actor": {"num_gpus_per_node": 1}, "rollout": {"n_samples_per_prompt": 4, "batch_size": 1, **rollout}}
    )
    return GroupRunner(
        cfg, engine or IndexEngine(), CharCodec(), envs or Envs(), rewards or LongIsCorrect(), judge, "a0"
    )


async def test_the_metadata_lists_the_valid_samples_in_order():
    meta, group = await runner().run(KEY, Task("Q", "x"))
    assert (
        meta.response_tokens == [1, 2, 3, 4]
        and meta.rewards == [0.0, 0.0, 1.0, 1.0]
        and meta.used_code == [True, False, False, False]
    )
    assert meta.oldest_version == 5 and meta.stats["format_ok"] == 1.0 and len(group.valid) == 4


async def test_a_broken_environment_or_verifier_is_no_zero():
    meta, group = await runner(envs=Envs([1]), rewards=LongIsCorrect([3])).run(KEY, Task("Q", "x"))
    assert meta.index == [0, 2] and meta.rewards == [0.0, 1.0]
    assert meta.failures == {"env_error": 1, "verifier_error": 1} and meta.failed is None
    assert [t.reward for t in group.trajectories] == [0.0, None, 1.0, None]


async def test_a_group_with_too_few_valid_samples_is_failed_and_not_judged():
    def judge(group):
        raise AssertionError("a failed group was judged")

    meta, _ = await runner(envs=Envs([0, 1, 2]), judge=judge, min_valid=2).run(KEY, Task("Q", "x"))
    assert meta.failed == "env_error"


def test_stragglers_are_failed_at_the_deadline_and_the_rest_is_kept():
    async def scenario():
        return await runner(engine=IndexEngine([0, 0, 60, 0]), group_deadline_s=0.2).run(KEY, Task("Q", "x"))

    meta, _ = virtual_loop.run(scenario())
    assert meta.failures == {"deadline": 1} and meta.index == [0, 1, 3]


async def test_evaluation_has_its_own_n_and_no_filter():
    meta, _ = await runner(judge=lambda g: Verdict(False, "accuracy_low")).run(KEY, Task("Q", "x"), EvalMode(2, 0.0))
    assert meta.verdict.keep and len(meta.rewards) == 2


class GuessingEngine(IndexEngine):
    """Writes a guess, "2", every time that it is asked."""

    async def generate(self, token_ids, sampling, *, request_id):
        return Completion(np.array([50], np.int32), np.zeros(1, np.float32), np.full(1, 5, np.int32), "2", "stop", "2")


class Talkative(Envs):
    @asynccontextmanager
    async def session(self, env, task, *, seed):
        yield PlayedEnv(*["higher"] * 9)


async def test_evaluation_has_its_own_number_of_calls_and_training_keeps_its():
    made = runner(GuessingEngine(), Talkative(), drift_check=0.0)
    made.environments["python_tir"].env.protocol = "miniatures.toy.guess:Digits"
    made.environments["python_tir"].env.max_calls = 3
    calls = [
        [len(t.calls) for t in (await made.run(KEY, Task("Q", "x"), mode))[1].trajectories]
        for mode in (EvalMode(2, 0.0, max_calls=1), EvalMode(1, 0.0), None)
    ]
    assert calls == [[1, 1], [3], [3] * 4]


async def test_a_response_gets_what_the_prompt_leaves_of_max_len():
    """A prompt of 3 tokens leaves 5 of 8, one of 7 leaves 1."""
    asked = []

    class Asked(IndexEngine):
        async def generate(self, token_ids, sampling, *, request_id):
            asked.append(sampling.max_tokens)
            return await super().generate(token_ids, sampling, request_id=request_id)

    made = runner(Asked(), drift_check=0.0, max_new_tokens=6)
    made.cfg.data.max_len = 8
    for prompt in ("Q", "Q" * 3, "Q" * 7):
        await made.run(KEY, Task(prompt, "x"), EvalMode(1, 0.0))
    assert asked == [6, 5, 1]


async def test_a_filtered_group_carries_its_reason():
    meta, _ = await runner(judge=lambda g: Verdict(False, "accuracy_low")).run(KEY, Task("Q", "x"))
    assert meta.verdict == (False, "accuracy_low")


async def test_a_sample_whose_request_the_engine_refuses_is_failed_by_that_name_and_counted():
    meta, group = await runner(RefusingEngine({1})).run(KEY, Task("p", "1"))
    assert (meta.failed, meta.failures, meta.index) == (None, {"request_refused": 1}, [0, 2, 3])
    assert group.trajectories[1].reward is None


async def test_a_group_whose_requests_are_all_refused_is_not_failed_as_an_engine_error():
    meta, _ = await runner(RefusingEngine({0, 1, 2, 3})).run(KEY, Task("p", "1"))
    assert meta.failed == "request_refused"


class RecordingEnvs(Envs):
    def __init__(self):
        super().__init__()
        self.tasks = []

    def session(self, env, task, *, seed):
        self.tasks.append(task)
        return super().session(env, task, seed=seed)


async def test_a_protocol_asks_for_its_observations_and_a_row_may_ask_for_others():
    cfg = Config.model_validate(
        {
            "actor": {"num_gpus_per_node": 1},
            "rollout": {"n_samples_per_prompt": 1, "batch_size": 1, "min_valid": 1},
            "env": {"protocol": "torl"},
        }
    )
    asked = []
    for meta in ({}, {"observation": "zerotir"}):
        envs = RecordingEnvs()
        await GroupRunner(cfg, IndexEngine(), CharCodec(), envs, LongIsCorrect(), lambda g: Verdict(True)).run(
            KEY, Task("Q", "x", meta=meta)
        )
        asked.append(envs.tasks)
    assert asked == [[{"observation": "torl", "label": "x"}], [{"observation": "zerotir", "label": "x"}]]


class Seeded(IndexEngine):
    def __init__(self):
        super().__init__()
        self.seeds = []

    async def generate(self, token_ids, sampling, *, request_id):
        self.seeds.append(sampling.seed)
        return await super().generate(token_ids, sampling, request_id=request_id)


async def test_a_deterministic_run_seeds_every_request():
    plain, deterministic, again = Seeded(), Seeded(), Seeded()
    for engine, on in ((plain, False), (deterministic, True), (again, True)):
        made = runner(engine)
        made.cfg.train.full_determinism_enable = on
        await made.run(KEY, Task("Q", "x"))
    assert plain.seeds == [None] * 4
    assert deterministic.seeds == again.seeds and len(set(deterministic.seeds)) == 4


class SilentEngine:
    """Samples nothing, as where the prompt leaves no room in the context."""

    async def generate(self, token_ids, sampling, *, request_id):
        return Completion(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32), "", "length")


async def test_a_group_in_which_the_model_wrote_nothing_has_no_version_and_is_dropped_by_name():
    meta, group = await runner(SilentEngine()).run(KEY, Task("Q", "x"))
    assert (meta.oldest_version, meta.failed, meta.verdict) == (None, None, Verdict(False, "no_model_tokens"))
    assert len(group.valid) == 4
    meta, _ = await runner(SilentEngine()).run(KEY, Task("Q", "x"), EvalMode(2, 0.0))
    assert meta.verdict.keep, "an evaluation counts it as what it is, a wrong answer"


async def test_a_filter_that_fails_on_a_group_without_model_tokens_fails_it_and_does_not_drop_it():
    """Whether the filter would have kept it nobody knows: the failure must reach whoever counts them."""

    def broken(group):
        raise FilterError("mine.py:4: IndexError")

    meta, _ = await runner(SilentEngine(), judge=broken).run(KEY, Task("Q", "x"))
    assert meta.failed == FilterError.reason and meta.why == {FilterError.reason: "mine.py:4: IndexError"}
    assert meta.verdict == KEEP and meta.oldest_version is None


@pytest.mark.parametrize("noticed", [True, False], ids=["the thread saw it", "only the waiter can see it"])
def test_a_suspension_extends_the_deadline_so_that_long_answers_are_trained_as_well(noticed):
    """Deadline 40 s; an hour passes at 5 s in which nothing runs. Samples end at 1, 2, 20 and 30 s of awake time."""
    engine = IndexEngine()

    async def sleeps(seconds):
        for _ in range(int(seconds * 4)):  # an engine works in steps: a suspension delays what it has not done yet
            await asyncio.sleep(0.25)

    class Stepping(IndexEngine):
        async def generate(self, token_ids, sampling, *, request_id):
            await sleeps([1, 2, 20, 30][int(request_id.split("#")[1].split("/")[0])])
            return await super().generate(token_ids, sampling, request_id=request_id)

    async def scenario():
        loop = asyncio.get_running_loop()
        loop.call_later(5.0, loop.suspend, 3600.0, noticed)
        return await runner(Stepping(), group_deadline_s=40.0).run(KEY, Task("Q", "x"))

    meta, _ = virtual_loop.run(scenario())
    assert meta.failed is None and meta.response_tokens == [1, 2, 3, 4] and meta.failures == {}
    assert meta.seconds < 60 and engine.given_up == set()


@pytest.mark.parametrize("suspended", [True, False])
def test_a_group_that_lost_a_call_to_a_suspension_is_issued_again_as_a_whole(suspended):
    """The deadline of a call at another process went on: only the short answers would be left of the group."""

    class Late(LongIsCorrect):
        async def score(self, trajectory, task):
            if trajectory.index == 3:
                await asyncio.sleep(10.0)
                raise VerifierError("no answer within 10 s")
            return await super().score(trajectory, task)

    async def scenario():
        loop = asyncio.get_running_loop()
        if suspended:
            loop.call_later(5.0, loop.suspend, 3600.0)
        return await runner(rewards=Late(), group_deadline_s=100.0).run(KEY, Task("Q", "x"))

    meta, _ = virtual_loop.run(scenario())
    assert meta.failed == ("suspended" if suspended else None)
