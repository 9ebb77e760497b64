"""A run's pushes through shared device memory: who maps, who gets a file instead, and in which order buckets go."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import numpy as np
import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError, EngineGone, LearnerDied, WeightsUnverified
from openrlhf_tir.pushes import EXPOSED_BUCKETS, Exposed, ExposedBucket
from openrlhf_tir.types import Completion
from openrlhf_tir.waiting.deadlines import Deadline
from openrlhf_tir.weights.broadcast.transport import BroadcastTransport
from openrlhf_tir.weights.file_transport import FileTransport
from openrlhf_tir.weights.ipc.merged import merged
from openrlhf_tir.weights.ipc.transport import IpcTransport
from openrlhf_tir.weights.publisher import WeightPublisher
from openrlhf_tir.weights.transports import transport_of

from ....contract.called_in_process import CalledInProcess

LATE = Deadline(60.0, "timeouts.push_s")
SOON = Deadline(0.05, "timeouts.push_s")


class Learner:
    """What it exposes or writes is its version. `log` has what happens in a push, in order."""

    def __init__(self, buckets: int = 1) -> None:
        self.version = 0
        self.buckets = buckets
        self.log: list[str] = []
        self.engines: list[Engine] = []
        self.overwritten: list[int] = []
        """Buckets that were filled before an engine had loaded what was in their buffer."""
        self.trial_fault: str | None = None
        self.fault_at: int | None = None
        self.dies_at: int | None = None

    async def expose_trial(self) -> Exposed:
        self.log.append("trial")
        return Exposed("trial", [self._bucket(0)], fault=self.trial_fault)

    async def expose(self, push: str, first: int) -> Exposed:
        self.log.append(f"expose {first}")
        if first == self.dies_at:
            raise LearnerDied("rank 0 is gone")
        if first == self.fault_at:
            return Exposed(push, [], 0, "no memory")
        end = min(first + (1 if first else EXPOSED_BUCKETS), self.buckets)
        before = f"v{self.version}b{first - EXPOSED_BUCKETS}"
        if first and any(before not in engine.loaded for engine in self.engines):
            self.overwritten.append(first)
        return Exposed(push, [self._bucket(n) for n in range(first, end)], self.buckets - end)

    def _bucket(self, number: int) -> ExposedBucket:
        return ExposedBucket([(f"w{number}", "F32", (2,))], 16, f"v{self.version}b{number}", {"GPU a": b"handle"})

    async def publish(self, path: Path) -> str:
        self.log.append("write")
        path.write_text(str(self.version))
        return f"file {self.version}"

    async def score(self, sequences):
        return [np.full(len(s) - 1, -float(self.version)) for s in sequences]


class Engine(CalledInProcess):
    def __init__(self, learner: Learner, name: str, fate: str = "") -> None:
        self.learner, self.name, self.fate = learner, name, fate
        self.version = 0
        self.verdicts: list[object] = []
        self.loaded: list[str] = []

    async def map_exposed(self, exposed: Exposed) -> str | None:
        self.learner.log.append(f"map {exposed.push.partition(' ')[0]}")
        if self.fate == "dies in map":
            raise EngineGone(f"{self.name} is gone")
        if self.fate == "cannot map" or (self.fate == "wrong bytes" and exposed.push != "trial"):
            return "another device"
        return None

    async def load_exposed(self, exposed: Exposed, version, canary=None):
        self.learner.log.append(f"load {len(exposed.buckets)}")
        if self.fate == "dies in load":
            raise EngineGone(f"{self.name} is gone")
        if self.fate == "hangs in load":
            await asyncio.Event().wait()
        self.loaded += [bucket.digest for bucket in exposed.buckets]
        if exposed.remaining:
            return []
        if self.fate == "misloads":
            raise WeightsUnverified("the model does not hold what was sent")
        self.version = version + (self.fate == "disagrees")
        return await self.sample_canary(*canary)

    async def update_weights(self, path: Path, version, digest, canary=None, link=None):
        assert path.read_text() == str(version) and link is None
        self.learner.log.append("file")
        self.version = version
        return await self.sample_canary(*canary)

    async def sample_canary(self, prompt_ids, max_tokens, seed):
        logprobs = np.full(max_tokens, -float(self.version), np.float32)
        versions = np.full(max_tokens, self.learner.version, np.int32)
        return [Completion(np.zeros(max_tokens, np.int32), logprobs, versions, "", "length") for _ in prompt_ids]

    async def confirm_weights(self, version):
        self.verdicts.append(version)
        return {"push_load_s": 0.25}

    async def discard(self, why):
        self.verdicts.append("discarded")


class Run:
    def __init__(self, tmp_path: Path, *fates: str, buckets: int = 1, deadline: Deadline = LATE) -> None:
        self.learner = Learner(buckets)
        self.engines = [Engine(self.learner, f"rollout-{i}", fate) for i, fate in enumerate(fates)]
        self.learner.engines = self.engines
        by_file = FileTransport(self.learner, tmp_path / "push", delta=False, deadline=LATE)
        self.transport = IpcTransport(self.learner, by_file, deadline)
        self.publisher = WeightPublisher(
            self.learner, self.engines, tmp_path, [[5, 6]], tolerance=1e-4, canary_tokens=2, transport=self.transport
        )

    async def push(self, *, step: bool = True):
        self.learner.version += step
        self.learner.log.clear()
        return await self.publisher.publish(self.learner.version, must_differ=True)


async def test_an_engine_maps_a_trial_once_and_then_each_push_before_it_loads(tmp_path):
    run = Run(tmp_path, "")
    report = await run.push()
    assert run.learner.log == ["trial", "map trial", "expose 0", "map push", "load 1"]
    assert (report.refused, report.nbytes, report.delta) == (0, 16, False)
    assert report.parts["push_ipc"] == 1.0 and report.parts["push_load_s"] == 0.25
    first = report.digest
    report = await run.push()
    assert run.learner.log == ["expose 0", "map push", "load 1"] and report.digest != first
    assert run.engines[0].verdicts == [1, 2] and not (tmp_path / "push").exists()


async def test_a_buffer_is_filled_again_only_after_every_engine_has_loaded_what_was_in_it(tmp_path):
    run = Run(tmp_path, "", "", buckets=5)
    report = await run.push()
    assert [x for x in run.learner.log if x.startswith("expose")] == ["expose 0", "expose 2", "expose 3", "expose 4"]
    assert run.learner.log.index("expose 3") < run.learner.log.index("load 1"), "it is filled while others load"
    assert not run.learner.overwritten
    assert [e.loaded for e in run.engines] == [[f"v1b{n}" for n in range(5)]] * 2
    assert (report.nbytes, report.parts["push_ipc"]) == (80, 2.0)


async def test_weights_that_had_to_differ_and_do_not_are_found_before_an_engine_loads_the_last_of_them(tmp_path):
    run = Run(tmp_path, "")
    await run.push()
    with pytest.raises(WeightsUnverified):
        await run.push(step=False)
    assert run.learner.log == ["expose 0", "map push"]


@pytest.mark.parametrize("fate", ["cannot map", "wrong bytes"])
async def test_an_engine_that_cannot_map_gets_files_from_then_on_and_the_log_says_so_once(tmp_path, caplog, fate):
    run = Run(tmp_path, "", fate)
    with caplog.at_level(logging.WARNING):
        reports = [await run.push(), await run.push()]
    assert [(r.refused, r.parts["push_ipc"], r.parts["push_ipc_failed"]) for r in reports] == [(0, 1, 1), (0, 1, 0)]
    assert run.learner.log == ["expose 0", "map push", "load 1", "write", "file"]
    assert [e.version for e in run.engines] == [2, 2] and [e.verdicts for e in run.engines] == [[1, 2]] * 2
    assert sum("another device" in record.getMessage() for record in caplog.records) == 1


async def test_a_learner_that_cannot_share_its_memory_writes_files_and_says_so_once(tmp_path, caplog):
    run = Run(tmp_path, "")
    run.learner.trial_fault = "expandable segments"
    with caplog.at_level(logging.WARNING):
        reports = [await run.push(), await run.push()]
    assert run.learner.log == ["write", "file"] and run.transport.disabled_reason
    assert [r.digest for r in reports] == ["file 1", "file 2"]
    assert [(r.parts["push_ipc"], r.parts["push_ipc_failed"]) for r in reports] == [(0, 1), (0, 0)]
    assert sum("expandable segments" in record.getMessage() for record in caplog.records) == 1


async def test_weights_by_file_alone_must_differ_as_well(tmp_path):
    run = Run(tmp_path, "")
    run.learner.trial_fault = "no"
    await run.push()
    with pytest.raises(WeightsUnverified):
        await run.push(step=False)


async def test_memory_that_runs_out_before_or_in_the_middle_of_a_push_is_followed_by_a_file(tmp_path):
    for fault_at, loads in ((0, 0), (3, 2)):
        run = Run(tmp_path / str(fault_at), "", buckets=5)
        run.learner.fault_at = fault_at
        report = await run.push()
        assert run.learner.log.count("file") == 1 and sum(x.startswith("load") for x in run.learner.log) == loads
        assert (report.refused, report.digest, run.transport.disabled_reason is None) == (0, "file 1", False)
        assert (report.parts["push_ipc"], report.parts["push_ipc_failed"]) == (0, 1)


@pytest.mark.parametrize("fate", ["dies in map", "dies in load"])
async def test_an_engine_that_dies_in_a_push_costs_the_others_nothing(tmp_path, fate):
    run = Run(tmp_path, "", fate, buckets=4)
    report = await run.push()
    assert report.refused == 0 and run.engines[0].verdicts == [1] and run.engines[1].verdicts == []
    assert "write" not in run.learner.log


async def test_an_engine_that_hangs_is_given_up_at_the_deadline_of_a_push(tmp_path):
    run = Run(tmp_path, "", "hangs in load", deadline=SOON)
    await run.push()
    assert run.engines[0].verdicts == [1] and run.engines[1].verdicts == ["discarded"]


async def test_a_learner_that_dies_in_the_middle_of_a_push_ends_it(tmp_path):
    run = Run(tmp_path, "", buckets=5)
    run.learner.dies_at = 3
    with pytest.raises(LearnerDied):
        await run.push()
    assert "write" not in run.learner.log and run.engines[0].verdicts == []


async def test_a_push_whose_proof_failed_is_repeated_by_file(tmp_path):
    run = Run(tmp_path, "disagrees")
    report = await run.push()
    assert run.learner.log[-2:] == ["write", "file"] and (report.refused, report.pushes_repeated) == (0, 1)
    assert run.engines[0].verdicts == [1] and report.parts["push_ipc_failed"] == 1
    report = await run.push()
    assert run.learner.log.count("load 1") == 1, "the next version is exposed again"


async def test_an_engine_that_joins_is_tried_and_gets_the_weights_of_the_others(tmp_path):
    run = Run(tmp_path, "")
    await run.push()
    joined = Engine(run.learner, "rollout-1")
    run.learner.log.clear()
    await run.publisher.join(joined)
    assert run.learner.log == ["trial", "map trial", "expose 0", "map push", "load 1"] and joined.verdicts == [1]


def test_what_several_ranks_expose_is_one_exposure_and_one_ranks_fault_is_everyones():
    ranks = [Exposed("push", [ExposedBucket([], 0, "d", {f"GPU {r}": bytes([r])})], 3) for r in range(2)]
    assert merged(ranks) == Exposed("push", [ExposedBucket([], 0, "d", {"GPU 0": b"\0", "GPU 1": b"\1"})], 3)
    assert merged([ranks[0], Exposed("push", [], 3, "no memory")]).fault == "no memory"


SIDE_BY_SIDE = {"train": {"share_gpus": True}, "vllm": {"kv_cache_mib": 64}}


@pytest.mark.parametrize(
    ("settings", "gpus", "chosen"),
    [
        ({}, True, FileTransport),
        (SIDE_BY_SIDE, True, IpcTransport),
        (SIDE_BY_SIDE, False, FileTransport),
        (SIDE_BY_SIDE | {"vllm": {"kv_cache_mib": 64, "sync_backend": "file"}}, True, FileTransport),
        (SIDE_BY_SIDE | {"vllm": {"kv_cache_mib": 64, "sync_backend": "delta"}}, True, FileTransport),
        (SIDE_BY_SIDE | {"vllm": {"kv_cache_mib": 64, "sync_backend": "gloo"}}, True, BroadcastTransport),
    ],
)
def test_learner_and_engine_on_one_gpu_push_through_its_memory_without_being_asked(settings, gpus, chosen, tmp_path):
    made = transport_of(Config.model_validate(settings), Learner(), tmp_path, gpus=gpus)
    assert type(made) is chosen


def test_shared_memory_is_refused_where_learner_and_engine_are_apart():
    with pytest.raises(ValueError, match="ipc"):
        Config.model_validate({"vllm": {"sync_backend": "ipc"}})


def test_shared_memory_is_refused_before_a_model_loads_where_there_is_no_gpu():
    from openrlhf_tir.cli.checks.host import Machine, check_backend

    config = Config.model_validate(SIDE_BY_SIDE | {"vllm": {"kv_cache_mib": 64, "sync_backend": "ipc"}})
    with pytest.raises(ConfigError, match=r"vllm\.sync_backend = 'ipc' .*'file'.*'auto'"):
        check_backend(config, Machine(gpus=0))
