"""A run's pushes with vllm.sync_backend = delta: what changed goes to whoever can continue, everything to whoever
cannot; the proof is that of every push."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from openrlhf_tir.errors import EngineGone, WeightsUnverified
from openrlhf_tir.pushes import DeltaDigest
from openrlhf_tir.types import Completion
from openrlhf_tir.weights.delta_file import DeltaWriter
from openrlhf_tir.weights.digest import digest_file, tensors_digest
from openrlhf_tir.weights.file_transport import FileTransport
from openrlhf_tir.weights.node_copy import NodeCopy
from openrlhf_tir.weights.publisher import PUSH, WeightPublisher

from ...contract.called_in_process import CalledInProcess
from .pieces import encode


def logprob(weights) -> float:
    """What any token has under them."""
    return -float(weights["w"].astype(np.float64).mean())


class Learner:
    """A step adds one to 10 of 10,000 weights."""

    def __init__(self) -> None:
        self.weights, self.version, self.last = {"w": np.arange(10_000, dtype=np.int16)}, 0, None
        self.in_transit = lambda path: None
        """What happens to a delta on its way."""
        self.written: list[str] = []

    def step(self, n: int = 10) -> int:
        self.version += 1
        self.weights["w"][self.version * 100 :][:n] += 1
        return self.version

    async def publish(self, path: Path) -> str:
        self.written.append(path.name)
        save_file(self.weights, path)
        self.last = self.weights["w"].copy()
        return tensors_digest(self.weights.items())

    async def publish_changes(self, path: Path, base_version: int) -> DeltaDigest | None:
        piece, base = encode(self.last, self.weights["w"]), tensors_digest([("w", self.last)])
        self.last = self.weights["w"].copy()
        if piece and piece.nbytes > 1000:
            return None
        self.written.append(path.name)
        with path.open("wb") as out:
            writer = DeltaWriter(out, base, base_version)
            if piece:
                writer.add("w", [(0, piece)])
            changes = writer.end(tensors_digest(self.weights.items()))
        self.in_transit(path)
        return changes

    async def score(self, sequences):
        return [np.full(len(s) - 1, logprob(self.weights)) for s in sequences]


class Engine(CalledInProcess):
    """Alone on its node."""

    def __init__(self, root: Path, name: str) -> None:
        self.node, self.name, self.version, self.weights = NodeCopy(keep=True, root=root / name), name, 0, None
        self.down, self.off, self.verdicts = False, 0.0, []
        self.in_full: list[int] = []
        """Versions that it took as a full push."""

    async def update_weights(self, path, version, digest, canary=None, link=None):
        if self.down:
            raise EngineGone(f"{self.name} is gone")
        if link is None:
            self.in_full.append(version)
        proved = self.node.full(path, version, digest) if link is None else self.node.delta(path, version, digest, link)
        assert digest_file(proved) == digest
        self.weights, self.version = load_file(proved), version
        return await self.sample_canary(*canary)

    async def sample_canary(self, prompt_ids, max_tokens, seed):
        n = max_tokens
        logprobs = np.full(n, logprob(self.weights) + self.off, np.float32)
        return [
            Completion(np.zeros(n, np.int32), logprobs, np.full(n, self.version, np.int32), "", "length")
            for _ in prompt_ids
        ]

    async def confirm_weights(self, version):
        self.verdicts.append(version)
        return {}

    async def discard(self, why):
        self.verdicts.append(why)


class Run:
    def __init__(self, tmp_path: Path, engines: int = 2) -> None:
        self.learner, self.tmp_path = Learner(), tmp_path
        self.engines = [Engine(tmp_path, f"rollout-{i}") for i in range(engines)]
        self.publisher = self.start()

    def start(self) -> WeightPublisher:
        return WeightPublisher(
            self.learner,
            self.engines,
            self.tmp_path / "push",
            [[5, 6]],
            tolerance=1e-2,
            canary_tokens=2,
            transport=FileTransport(self.learner, self.tmp_path / "push", delta=True, deadline=PUSH),
        )

    async def push(self, n: int = 10):
        self.learner.step(n)
        return await self.publisher.publish(self.learner.version, must_differ=True)

    def equal(self) -> bool:
        """Every engine samples from the learner's weights, bit by bit, and that was proved."""
        wanted, version = self.learner.weights["w"].tobytes(), self.learner.version
        return all(e.weights["w"].tobytes() == wanted and e.verdicts[-1] == version for e in self.engines)


@pytest.fixture
async def run(tmp_path) -> Run:
    run = Run(tmp_path)
    await run.publisher.publish(0)
    return run


async def test_the_first_push_is_full_and_the_others_are_what_changed(run):
    reports = [await run.push() for _ in range(3)]
    assert run.learner.written == ["v0.safetensors", "v1.delta", "v2.delta", "v3.delta"] and run.equal()
    assert all(r.delta and 0 < r.nbytes < 300 and r.refused == 0 for r in reports)
    assert [f.name for f in run.publisher.transport.directory.iterdir()] == ["v3.delta"]
    assert reports[-1].digest == tensors_digest(run.learner.weights.items())


def broken(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[12] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


class Replay:
    """Every delta is an earlier one again."""

    def __init__(self) -> None:
        self.old = b""

    def __call__(self, path: Path) -> None:
        new, self.old = path.read_bytes(), self.old or path.read_bytes()
        path.write_bytes(self.old if new != self.old else new)


@pytest.mark.parametrize("damage", [broken, cut, Path.unlink, Replay()])
async def test_a_delta_that_is_refused_is_followed_by_a_full_push_at_once(run, damage):
    if isinstance(damage, Replay):
        run.learner.in_transit = damage
        await run.push()
    run.learner.in_transit = damage
    report = await run.push()
    v = run.learner.version
    assert run.learner.written[-1] == f"v{v}.safetensors" and all(e.in_full == [0, v] for e in run.engines)
    assert run.equal() and not report.delta and report.refused == 0
    run.learner.in_transit = lambda path: None
    assert [(await run.push()).delta for _ in range(3)] == [False, True, True], (
        "nobody could take it, so the next was full"
    )
    assert run.equal()


async def test_an_engine_that_missed_a_push_gets_a_full_one_and_the_others_a_delta(run):
    run.engines[1].down = True
    assert (await run.push()).delta
    run.engines[1].down = False
    report = await run.push()
    assert [engine.in_full for engine in run.engines] == [[0], [0, 2]]
    assert run.equal() and not report.delta
    assert (await run.push()).delta and run.equal()


async def test_an_engine_that_joins_gets_a_full_push_and_then_what_changes(run):
    await run.push()
    run.engines.append(newcomer := Engine(run.tmp_path, "rollout-2"))
    await run.publisher.join(newcomer)
    assert run.learner.written[-2:] == ["v1.delta", "v1.safetensors"] and run.equal()
    assert (await run.push()).delta and run.equal()


async def test_an_engine_that_joins_after_a_step_gets_the_newer_weights_and_so_do_the_others_in_full(run):
    await run.push()
    run.learner.step()
    run.engines.append(newcomer := Engine(run.tmp_path, "rollout-2"))
    await run.publisher.join(newcomer)
    assert newcomer.version == 2 and not (await run.publisher.publish(2)).delta and run.equal()
    assert (await run.push()).delta and run.equal()


async def test_a_learner_that_starts_again_pushes_in_full_first(run):
    await run.push()
    run.learner.last, run.publisher = None, run.start()
    run.learner.step()
    assert not (await run.publisher.publish(run.learner.version)).delta and run.equal()
    assert (await run.push()).delta and run.equal()


async def test_a_delta_of_more_than_it_is_worth_is_a_full_push_and_tried_again_ever_later(run):
    kinds = [(await run.push(n=2000)).delta for _ in range(4)]
    assert kinds == [False] * 4 and run.equal()
    assert [(await run.push()).delta for _ in range(3)] == [False, True, True] and run.equal(), (
        "tried at the first, the third and the sixth"
    )


async def test_an_engine_that_fails_the_canary_after_a_delta_is_given_up_and_its_successor_gets_a_full_push(run):
    run.engines[1].off = 0.5
    report = await run.push()
    assert report.refused == 1 and isinstance(run.engines[1].verdicts[-1], str)
    run.engines[1] = Engine(run.tmp_path, "rollout-1")
    await run.publisher.join(run.engines[1])
    assert run.learner.written[-1] == "v1.safetensors" and run.equal()


async def test_a_step_that_changed_nothing_is_an_error_with_deltas_too(run):
    run.learner.version += 1
    with pytest.raises(WeightsUnverified, match=f" 1 .*{tensors_digest(run.learner.weights.items())[:12]}"):
        await run.publisher.publish(1, must_differ=True)
    assert (await run.publisher.publish(1)).delta and run.equal(), "a learning rate of 0 is a step like any other"


async def test_without_the_setting_every_push_is_full(tmp_path):
    run = Run(tmp_path)
    run.publisher = WeightPublisher(run.learner, run.engines, tmp_path / "push", [[5]], tolerance=1e-2)
    await run.publisher.publish(0)
    assert not (await run.push()).delta and run.learner.written == ["v0.safetensors", "v1.safetensors"] and run.equal()
