"""The scale benchmark: whose groups an engine's death has cost is read from the ledger, and what its emulated processes
need of the real ones is there."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import numpy as np
import pytest
from ray import cloudpickle
from ray.exceptions import ActorDiedError, RayTaskError

from benchmarks.pipeline.scale.actor import EmulatedRank, ScaleActor, ScaleEngine, ScaleRank, actor_class, digest_of
from benchmarks.pipeline.scale.host import Handle, Host
from benchmarks.pipeline.scale.lost import Loss, loss_of
from openrlhf_tir.cluster.learner_group import LearnerRank
from openrlhf_tir.cluster.ray_faults import death
from openrlhf_tir.cluster.rollout_actor import RolloutActor
from openrlhf_tir.errors import EngineGone, WeightsUnverified
from openrlhf_tir.pipeline.ledger.ledger import Ledger
from openrlhf_tir.pushes import Canary
from openrlhf_tir.simulation.workload import SEED_WORKLOAD, Workload
from openrlhf_tir.types import GroupKey

from .in_this_process import InThisProcess

A, B, C, D = (GroupKey(0, prompt) for prompt in range(4))
RAN_ON = {A: "dead", B: "dead", C: "other", D: "other"}


def judged(tmp_path: Path, ends: dict[GroupKey, tuple[str, str]], **again: str) -> Loss:
    """`ends`: (end, reason). What was requeued is issued once more, on the other engine, and trained."""
    ledger, ran_on = Ledger(tmp_path / "ledger.jsonl"), dict(RAN_ON)
    for key in RAN_ON:
        ledger.issued(key, 0)
    for key, (end, reason) in ends.items():
        ledger.ended(end, key, **({"reason": reason} if reason else {"step": 0}))
        if end == "requeued":
            second = GroupKey(*key[:2], key.attempt + 1)
            ran_on[second] = "other"
            ledger.issued(second, 1)
            ledger.ended("trained", second, step=1)
    ledger.close()
    return loss_of(tmp_path / "ledger.jsonl", ran_on, "dead", {A, B})


TRAINED, LOST = ("trained", ""), ("requeued", EngineGone.reason)


def test_a_death_that_costs_its_own_groups_and_no_others_is_said_to(tmp_path):
    loss = judged(tmp_path, {A: LOST, B: TRAINED, C: TRAINED, D: ("requeued", "surplus")})
    assert loss.only_its_own and (loss.running, loss.again, loss.of_others, loss.missed) == (2, 1, 0, 0)
    assert loss.requeued == {EngineGone.reason: 1, "surplus": 1} and loss.trained == 4 and loss.errors == []


def test_a_group_of_another_engine_that_is_issued_again_for_it_is_counted(tmp_path):
    loss = judged(tmp_path, {A: LOST, B: LOST, C: LOST, D: TRAINED})
    assert not loss.only_its_own and (loss.again, loss.of_others) == (3, 1)


def test_a_group_of_the_dead_engine_that_nobody_issued_again_is_counted(tmp_path):
    loss = judged(tmp_path, {A: LOST, C: TRAINED, D: TRAINED})
    assert not loss.only_its_own and loss.missed == 1


def test_a_death_that_cost_nothing_has_shown_nothing(tmp_path):
    assert not judged(tmp_path, dict.fromkeys(RAN_ON, TRAINED)).only_its_own


def test_the_emulated_processes_answer_to_the_calls_of_the_real_ones():
    for real, emulated in ((RolloutActor, ScaleActor), (LearnerRank, ScaleRank)):
        for name, method in inspect.getmembers(emulated, inspect.isfunction):
            if hasattr(real, name) and not name.startswith("_"):
                assert list(inspect.signature(method).parameters) == list(
                    inspect.signature(getattr(real, name)).parameters
                ), name


async def test_a_push_counts_when_its_bytes_are_the_announced_ones_and_the_canary_agrees_with_the_learner(tmp_path):
    engine, rank, path = ScaleEngine(Workload.read(SEED_WORKLOAD), 1e-6), EmulatedRank(0), tmp_path / "v1"
    digest = rank.publish(path)
    (sampled,) = await engine.update_weights(path, 1, digest, Canary([[1, 2]], 3, 0))
    (scored,) = rank.score([[1, 2, *sampled.token_ids]])
    assert engine.version == 1 and sampled.versions.tolist() == [1, 1, 1]
    assert np.array_equal(scored[1:], sampled.logprobs)
    path.write_bytes(b"other")
    with pytest.raises(WeightsUnverified, match=f"v1 .* {digest} "):
        await engine.update_weights(path, 2, digest)
    assert engine.version == 1


def test_versions_have_digests_of_their_own_and_all_ranks_agree_on_them(tmp_path):
    ranks = [EmulatedRank(rank) for rank in range(2)]
    first = {r.publish(tmp_path / "v0") for r in ranks}
    for r in ranks:
        r.version += 1
    second = {r.publish(tmp_path / "v1") for r in ranks}
    assert len(first) == len(second) == 1 and first != second
    assert digest_of((tmp_path / "v1").read_bytes()) in second


def test_an_actor_class_carries_its_workload_to_another_process():
    made = cloudpickle.loads(cloudpickle.dumps(actor_class(Workload.read(SEED_WORKLOAD), 0.5)))
    assert issubclass(made, RolloutActor) and made.scale == 0.5 and made.workload == Workload.read(SEED_WORKLOAD)


class Small:
    def __init__(self, index: int) -> None:
        self.index = index

    async def group(self) -> None:
        await asyncio.Event().wait()

    def step(self, batch: int) -> int:
        return self.index * batch


async def test_engines_that_share_a_process_are_called_one_by_one_and_die_one_by_one():
    host = InThisProcess(Host(Small))
    one, two = (Handle(host, index) for index in (1, 2))
    assert (await one.step.remote(10), await two.step.remote(10)) == (10, 20)
    (running, _), other = one.group.options(num_returns=2).remote(), two.group.remote()
    await asyncio.sleep(0.01)
    one.end()
    with pytest.raises(ActorDiedError):
        await running
    with pytest.raises(ActorDiedError):
        await one.step.remote(10)
    assert death(RayTaskError("call", "", ActorDiedError())), "what the controller is told of it counts as a death"
    assert await two.step.remote(10) == 20 and not other.done()
    other.cancel()
