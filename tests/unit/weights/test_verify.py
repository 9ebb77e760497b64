"""Digest and canary arithmetic, and what the publisher makes of engines that misbehave."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from openrlhf_tir.errors import ConfigError, Diverged, EngineGone, WeightsUnverified
from openrlhf_tir.types import Completion
from openrlhf_tir.weights.digest import digest_file, tensors_digest
from openrlhf_tir.weights.publisher import WeightPublisher, push_directory
from openrlhf_tir.weights.verify import max_abs_diff


def completion(logprobs, version=1, token_ids=None) -> Completion:
    n = len(logprobs)
    return Completion(np.asarray(token_ids or range(n), np.int32), np.asarray(logprobs, np.float32), np.full(n, version, np.int32), "", "length")


# --- digest


def test_the_digest_of_a_file_is_that_of_the_tensors_in_any_order(tmp_path):
    import torch
    from safetensors.torch import save_file

    tensors = {"b.w": torch.arange(6.0).reshape(2, 3), "a": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "s": torch.tensor(7)}
    save_file(tensors, tmp_path / "w.safetensors", metadata={"note": "does not count"})
    assert digest_file(tmp_path / "w.safetensors") == tensors_digest(tensors.items()) == tensors_digest(reversed(tensors.items()))


def test_numpy_and_torch_tensors_have_the_same_digest():
    import torch

    a = np.arange(4, dtype=np.float32).reshape(2, 2).T  # not contiguous
    assert tensors_digest([("x", a)]) == tensors_digest([("x", torch.from_numpy(a))]) == tensors_digest([("x", np.array([[0, 2], [1, 3]], np.float32))])


@pytest.mark.parametrize(
    "other",
    [
        ("x", np.array([1.0, np.nextafter(np.float32(2), np.float32(3))], np.float32)),
        ("y", np.array([1.0, 2.0], np.float32)),
        ("x", np.array([[1.0, 2.0]], np.float32)),
        ("x", np.array([1.0, 2.0], np.float32).view(np.int32)),
    ],
    ids=["one bit", "name", "shape", "dtype"],
)
def test_one_changed_bit_name_shape_or_dtype_changes_the_digest(other):
    assert tensors_digest([other]) != tensors_digest([("x", np.array([1.0, 2.0], np.float32))])


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:5], lambda b: b"", lambda b: b"\xff" * 64, lambda b: b + b"x"])
def test_a_damaged_file_is_named(tmp_path, damage):
    from safetensors.numpy import save

    path = tmp_path / "w.safetensors"
    path.write_bytes(damage(save({"x": np.ones(8, np.float32)})))
    with pytest.raises(WeightsUnverified, match=r"w\.safetensors is no complete safetensors file"):
        digest_file(path)


# --- canary


def test_the_canary_is_the_worst_token_of_all_completions():
    assert max_abs_diff([completion([-1.0, -2.0]), completion([-0.5])], [np.array([-1.0, -2.25]), np.array([-0.5])]) == 0.25


def test_a_log_prob_that_is_not_finite_fails_the_canary():
    assert max_abs_diff([completion([float("nan")])], [np.array([-1.0])]) == float("inf")


@pytest.mark.parametrize("scores", [[np.zeros(2)], []])
def test_scores_that_do_not_align_are_a_bug(scores):
    with pytest.raises(ValueError, match="cannot be compared"):
        max_abs_diff([completion([-1.0])], scores)


def test_a_canary_without_tokens_proves_nothing():
    with pytest.raises(ValueError, match="cannot be compared"):
        max_abs_diff([], [])


# --- publisher


class FakeLearner:
    """Log-prob of every token is minus the number of updates: so is the engine's, if it has the weights."""

    def __init__(self) -> None:
        self.updates = 0

    @property
    def version(self) -> int:
        return self.updates

    async def publish(self, path: Path) -> str:
        path.write_bytes(b"weights")
        return f"digest of update {self.updates}"

    async def score(self, sequences):
        return [np.full(len(s) - 1, -float(self.updates)) for s in sequences]


class FakeEngine:
    def __init__(self, fails: str = "", lags: int = 0) -> None:
        self.fails, self.lags, self.version, self.files = fails, lags, 0, []
        self.verdicts: list[int | str] = []

    async def update_weights(self, path: Path, version: int, digest: str, canary):
        assert path.read_bytes() == b"weights"
        if self.fails:
            raise WeightsUnverified(self.fails)
        self.version = version
        return await self.canary(*canary)

    async def canary(self, prompt_ids, max_tokens, seed):
        return [completion([-float(self.version - self.lags)] * max_tokens, self.version) for _ in prompt_ids]

    async def proved(self, version: int) -> None:
        self.verdicts.append(version)

    async def discard(self, why: str) -> None:
        self.verdicts.append(why)


def publisher(engines, tmp_path) -> WeightPublisher:
    return WeightPublisher(FakeLearner(), engines, tmp_path / "push", [[5, 6, 7], [8]], tolerance=1e-4, canary_tokens=3)


async def publish(p: WeightPublisher, version: int):
    p.learner.updates = version
    return await p.publish(version)


async def test_a_push_reports_its_digest_and_keeps_only_the_last_file(tmp_path):
    engines = [FakeEngine(), FakeEngine()]
    p = publisher(engines, tmp_path)
    for version in (1, 2):
        report = await publish(p, version)
    assert (report.version, report.digest, report.canary_max_diff) == (2, "digest of update 2", 0.0)
    assert [e.version for e in engines] == [2, 2]
    assert [f.name for f in (tmp_path / "push").iterdir()] == ["v2.safetensors"]
    await p.close()
    assert not (tmp_path / "push").exists()


async def test_unchanged_weights_are_an_error_only_after_an_update_that_must_have_changed_something(tmp_path):
    p = publisher([FakeEngine()], tmp_path)
    await publish(p, 1)
    with pytest.raises(WeightsUnverified, match="did not step"):
        await p.publish(2, must_differ=True)
    p.learner.publish = equal_weights
    assert (await p.publish(2)).digest == (await p.publish(3)).digest


async def equal_weights(path: Path) -> str:
    """A learner whose updates change nothing: the learning rate is 0."""
    path.write_bytes(b"weights")
    return "digest of update 1"


async def test_one_engine_that_refuses_does_not_keep_the_push_from_the_others(tmp_path):
    engines = [FakeEngine(), FakeEngine(fails="other digest"), FakeEngine()]
    report = await publish(publisher(engines, tmp_path), 1)
    assert (report.refused, report.canary_max_diff) == (1, 0.0)
    assert [e.version for e in engines] == [1, 0, 1]
    assert [e.verdicts for e in engines] == [[1], ["Version 1: other digest."], [1]]


async def test_an_engine_that_samples_from_older_weights_is_discarded_with_its_distance(tmp_path):
    engines = [FakeEngine(), FakeEngine(lags=1)]
    report = await publish(publisher(engines, tmp_path), 1)
    assert report.refused == 1
    assert engines[0].verdicts == [1]
    assert engines[1].verdicts[0].startswith("Version 1: 1 nats: the file arrived")


async def test_an_engine_whose_canary_is_of_another_version_is_discarded_though_the_numbers_agree(tmp_path):
    class Unswitched(FakeEngine):
        async def canary(self, prompt_ids, max_tokens, seed):
            return [completion([-1.0] * max_tokens, version=0) for _ in prompt_ids]

    engine = Unswitched()
    assert (await publish(publisher([engine], tmp_path), 1)).refused == 1
    assert "tokens of another version" in engine.verdicts[0]


async def test_a_bug_in_an_engine_is_raised_and_not_taken_for_a_bad_push(tmp_path):
    class Buggy(FakeEngine):
        async def update_weights(self, path, version, digest, canary):
            raise KeyError("a bug")

    with pytest.raises(KeyError):
        await publish(publisher([Buggy()], tmp_path), 1)


def test_a_publisher_without_canary_prompts_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="canary"):
        WeightPublisher(FakeLearner(), [FakeEngine()], tmp_path, [], tolerance=1e-4)


def test_the_file_goes_to_the_run_directory_when_memory_is_short_or_engines_are_elsewhere(tmp_path):
    assert push_directory(tmp_path, 1 << 60).parent == tmp_path
    assert push_directory(tmp_path, 0, one_node=False).parent == tmp_path


def test_two_runs_of_the_same_name_push_to_different_places():
    assert push_directory(Path("/a/run"), 0) != push_directory(Path("/b/run"), 0)


class DeadEngine(FakeEngine):
    async def update_weights(self, path, version, digest, canary):
        raise EngineGone("died")


async def test_an_engine_that_died_does_not_fail_the_push(tmp_path):
    alive = FakeEngine()
    p = publisher([DeadEngine(), alive], tmp_path)
    await publish(p, 1)
    assert alive.version == 1


async def test_a_push_without_any_engine_alive_is_what_the_next_one_joins_with(tmp_path):
    p = publisher([DeadEngine()], tmp_path)
    assert (await publish(p, 1)).canary_max_diff == 0.0
    newcomer = FakeEngine()
    await p.join(newcomer)
    assert newcomer.version == 1


async def test_a_newcomer_that_samples_from_other_weights_is_refused(tmp_path):
    p = publisher([FakeEngine()], tmp_path)
    await publish(p, 1)
    with pytest.raises(WeightsUnverified, match="1 nats"):
        await p.join(FakeEngine(lags=1))


async def test_a_newcomer_waits_for_the_step_and_for_no_drain(tmp_path):
    """It joins between the step and the push with the weights that the push will bring to the others; those are written once."""
    p = publisher([FakeEngine()], tmp_path)
    await publish(p, 1)
    newcomer = FakeEngine()
    async with p.changing():
        joining = asyncio.create_task(p.join(newcomer))
        await asyncio.sleep(0)
        p.learner.updates = 2
        assert newcomer.version == 0
    await joining
    assert newcomer.version == 2 and p.engines[0].version == 1
    p.engines.append(newcomer)
    await p.publish(2)
    assert [e.version for e in p.engines] == [2, 2]
    assert [f.name for f in p.directory.iterdir()] == ["v2.safetensors"]


async def test_a_learner_whose_own_scores_are_not_finite_is_named_and_not_the_engine(tmp_path):
    p = publisher([FakeEngine()], tmp_path)
    p.learner.updates = float("nan")
    with pytest.raises(Diverged, match="the weights are broken"):
        await p.publish(1)
    assert p.engines[0].verdicts == []


async def test_a_low_precision_tolerance_is_four_times_what_freshly_loaded_engines_differ_by(tmp_path):
    p = publisher([FakeEngine()], tmp_path)
    p.tolerance = None
    p.engines[0].lags = 0.01
    assert await p.calibrate() == pytest.approx(0.04)
