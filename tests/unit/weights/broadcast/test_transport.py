"""A run's pushes by broadcast: one group for all engines, another when they are others, and again without whoever was
lost; the proof is that of every push."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import EngineGone, WeightsUnverified
from openrlhf_tir.pushes import BroadcastRendezvous, BroadcastResult
from openrlhf_tir.types import Completion
from openrlhf_tir.waiting.deadlines import Deadline
from openrlhf_tir.weights.broadcast.transport import ATTEMPTS, BroadcastTransport, Deadlines
from openrlhf_tir.weights.publisher import WeightPublisher
from openrlhf_tir.weights.transports import transport_of

from ....contract.called_in_process import CalledInProcess

LATE = Deadline(60.0, "timeouts.push_s")
SOON = Deadline(0.05, "timeouts.push_s / 10")
WORKERS = 2


class Push:
    def __init__(self) -> None:
        self.here, self.over = 0, asyncio.get_running_loop().create_future()

    def end(self, why: str | None) -> None:
        """None: all of it is through."""
        if not self.over.done():
            self.over.set_result(why)


class Learner:
    """What it sends is its version. A push is through once as many workers as were expected take part in it."""

    def __init__(self) -> None:
        self.version, self.expected, self.ended = 0, [], []
        self.pushes: dict[str, Push] = defaultdict(Push)
        self.accidents: list[str] = []
        """What tears the next pushes."""

    async def open_broadcast(self, receivers: int) -> BroadcastRendezvous:
        self.expected.append(receivers)
        return BroadcastRendezvous("gloo", "node", len(self.expected), receivers, 60.0)

    async def broadcast(self, push: str) -> BroadcastResult:
        if self.accidents:
            self.pushes[push].end(self.accidents.pop(0))
        fault = await self.pushes[push].over
        return BroadcastResult(fault=fault) if fault else BroadcastResult(f"digest {self.version}", 100)

    async def end_broadcast(self, push: str, why: str) -> None:
        self.ended.append(why)
        self.pushes[push].end(why)

    async def score(self, sequences):
        return [np.full(len(s) - 1, -float(self.version)) for s in sequences]


class Engine(CalledInProcess):
    def __init__(self, learner: Learner, name: str, fate: str) -> None:
        self.learner, self.name, self.fate, self.version = learner, name, fate, 0
        self.places, self.verdicts, self.half_new = [], [], False
        """(meeting, first rank) of each push."""

    async def receive_weights(self, meeting: BroadcastRendezvous, first_rank: int, push: str) -> BroadcastResult:
        self.places.append((meeting.port, first_rank))
        if self.fate == "dies":
            raise EngineGone(f"{self.name} is gone")
        here, self.half_new = self.learner.pushes[push], True
        here.here += WORKERS
        if self.fate == "hangs":
            here.end("a bucket of the weights did not come through")
            await asyncio.Event().wait()
        if here.here == meeting.receivers:
            here.end(None)
        await asyncio.wait({here.over})
        if fault := "the learner is gone" if here.over.exception() else here.over.result():
            return BroadcastResult(fault=fault)
        return BroadcastResult("digest of noise" if self.fate == "noise" else f"digest {self.learner.version}", 100)

    async def apply_received(self, version, digest, canary=None):
        assert digest == f"digest {self.learner.version}"
        self.version, self.half_new = version, False
        return await self.sample_canary(*canary)

    async def sample_canary(self, prompt_ids, max_tokens, seed):
        logprobs = np.full(max_tokens, -float(self.version), np.float32)
        return [
            Completion(
                np.zeros(max_tokens, np.int32), logprobs, np.full(max_tokens, self.version, np.int32), "", "length"
            )
            for _ in prompt_ids
        ]

    async def confirm_weights(self, version):
        self.verdicts.append(version)
        return {}

    async def discard(self, why):
        self.verdicts.append(why)


class Run:
    def __init__(self, tmp_path, *fates: str, answer: Deadline = LATE) -> None:
        self.learner = Learner()
        self.engines = [self.engine(fate) for fate in fates]
        transport = BroadcastTransport(self.learner, WORKERS, Deadlines(LATE, answer))
        self.publisher = WeightPublisher(
            self.learner, self.engines, tmp_path, [[5, 6]], tolerance=1e-4, canary_tokens=2, transport=transport
        )

    def engine(self, fate: str = "") -> Engine:
        return Engine(self.learner, f"rollout-{fate}", fate)

    async def push(self, *, step: bool = True):
        self.learner.version += step
        return await self.publisher.publish(self.learner.version, must_differ=True)


async def test_engines_meet_once_and_each_has_ranks_of_its_own(tmp_path):
    run = Run(tmp_path, "", "")
    for version in (1, 2):
        report = await run.push()
        assert (report.version, report.digest, report.nbytes) == (version, f"digest {version}", 100)
        assert (report.refused, report.delta) == (0, False)
        assert report.canary_max_diff == 0.0 and report.write_s > 0
    assert run.learner.expected == [4]
    assert [e.places for e in run.engines] == [[(1, 1), (1, 1)], [(1, 3), (1, 3)]]
    assert [e.verdicts for e in run.engines] == [[1, 2], [1, 2]]


async def test_an_engine_that_dies_is_left_out_of_another_group_and_the_push_is_repeated(tmp_path):
    run = Run(tmp_path, "", "dies", "")
    report = await run.push()
    a, dead, c = run.engines
    assert run.learner.ended == ["rollout-dies is gone"], "the learner is told, and waits for no deadline"
    assert run.learner.expected == [6, 4] and report.refused == 0 and report.nbytes == 100
    assert (a.places, c.places) == ([(1, 1), (2, 1)], [(1, 5), (2, 3)])
    assert a.verdicts == c.verdicts == [1] and dead.verdicts == [] and not a.half_new


async def test_an_engine_that_hangs_is_discarded_and_the_others_have_the_push(tmp_path):
    run = Run(tmp_path, "", "hangs", answer=SOON)
    report = await run.push()
    well, hung = run.engines
    assert report.refused == 1 and "timeouts.push_s / 10 = 0.05 s" in hung.verdicts[0]
    assert well.verdicts == [1] and run.learner.expected == [4, 2]


async def test_bytes_that_changed_on_the_way_are_refused_by_their_digest(tmp_path):
    run = Run(tmp_path, "noise", "")
    report = await run.push()
    refused, well = run.engines
    assert report.refused == 1 and "digest of n" in refused.verdicts[0] and refused.version == 0
    assert well.verdicts == [1]


async def test_an_accident_costs_another_attempt_and_nobody_is_lost(tmp_path):
    run = Run(tmp_path, "", "")
    run.learner.accidents = ["a cable", "a switch"]
    report = await run.push()
    assert report.refused == 0 and run.learner.expected == [4, 4, 4]
    assert [e.verdicts for e in run.engines] == [[1], [1]]


async def test_a_push_that_is_torn_every_time_leaves_no_engine_that_is_half_new(tmp_path):
    run = Run(tmp_path, "")
    run.learner.accidents = ["a cable"] * ATTEMPTS
    report = await run.push()
    [engine] = run.engines
    assert report.refused == 1 and run.learner.expected == [2] * ATTEMPTS
    assert re.search(rf" 1 .* {ATTEMPTS} .*a cable", engine.verdicts[0]) and engine.version == 0


async def test_a_learner_that_dies_in_a_push_ends_it_and_the_next_publisher_begins_anew(tmp_path):
    class LearnerDied(Exception):
        pass

    run = Run(tmp_path, "")
    run.learner.pushes["push1"].over.set_exception(LearnerDied())
    with pytest.raises(LearnerDied):
        await run.push()
    assert run.engines[0].verdicts == [] and run.engines[0].half_new


async def test_a_newcomer_meets_the_learner_alone_and_all_of_them_the_next_time(tmp_path):
    run = Run(tmp_path, "")
    await run.publisher.join(early := run.engine())
    assert early.places == [(1, 1)] and early.verdicts == [0], "before the first push too"
    run.learner.expected.clear()
    await run.push()
    await run.publisher.join(newcomer := run.engine())
    assert newcomer.verdicts == [1] and newcomer.places == [(2, 1)] and run.engines[0].places == [(1, 1)]
    run.engines.append(newcomer)
    await run.push()
    assert run.learner.expected == [2, 2, 4] and [e.verdicts for e in run.engines] == [[1, 2], [1, 2]]


async def test_a_newcomer_between_two_pushes_has_the_learners_own_weights_which_the_others_get_next(tmp_path):
    run = Run(tmp_path, "")
    await run.push()
    run.learner.version = 2
    await run.publisher.join(newcomer := run.engine())
    assert newcomer.version == 2 and run.engines[0].version == 1
    run.engines.append(newcomer)
    await run.push(step=False)
    assert [e.version for e in run.engines] == [2, 2]


async def test_weights_that_had_to_change_and_did_not_end_the_run(tmp_path):
    run = Run(tmp_path, "")
    await run.push()
    with pytest.raises(WeightsUnverified, match=r" 1 .*digest 1\b"):
        await run.push(step=False)


async def test_a_push_that_no_engine_was_there_for_has_no_digest_and_the_next_is_compared_with_what_was_sent(tmp_path):
    run = Run(tmp_path, "")
    await run.push()
    engine = run.engines.pop()
    report = await run.push()
    assert (report.version, report.digest, report.nbytes) == (2, "", 0), "it is not the one before"
    run.engines.append(engine)
    run.learner.version = 1  # whose weights the engine has
    with pytest.raises(WeightsUnverified, match=r" 3 .*digest 1\b"):
        await run.publisher.publish(3, must_differ=True)


async def test_a_newcomer_that_cannot_be_proved_is_told_so(tmp_path):
    run = Run(tmp_path, "")
    await run.push()
    with pytest.raises(WeightsUnverified, match="rollout-noise"):
        await run.publisher.join(run.engine("noise"))


def test_the_setting_chooses_the_transport():
    made = transport_of(
        Config(vllm={"sync_backend": "gloo", "tensor_parallel_size": 4}, timeouts={"push_s": 70.0}),
        Learner(),
        Path("unused"),
        gpus=False,
    )
    assert (made.workers, made.deadlines.answer) == (4, Deadline(7.0, "timeouts.push_s / 10"))
