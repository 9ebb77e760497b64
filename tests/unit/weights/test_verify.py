"""Digest and canary arithmetic, and what the publisher makes of engines that misbehave."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from openrlhf_tir.deadlines import Deadline
from openrlhf_tir.errors import ConfigError, Diverged, EngineGone, WeightsUnverified
from openrlhf_tir.types import Completion
from openrlhf_tir.weights.digest import digest_file, tensors_digest
from openrlhf_tir.weights.publisher import WeightPublisher
from openrlhf_tir.weights.push_files import push_directory
from openrlhf_tir.weights.verify import Disagreement, Tolerance, disagreement


def completion(logprobs, version=1, token_ids=None) -> Completion:
    n = len(logprobs)
    return Completion(
        np.asarray(token_ids or range(n), np.int32),
        np.asarray(logprobs, np.float32),
        np.full(n, version, np.int32),
        "",
        "length",
    )


# --- digest


def test_the_digest_of_a_file_is_that_of_the_tensors_in_any_order(tmp_path):
    import torch
    from safetensors.torch import save_file

    tensors = {
        "b.w": torch.arange(6.0).reshape(2, 3),
        "a": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "s": torch.tensor(7),
    }
    save_file(tensors, tmp_path / "w.safetensors", metadata={"note": "does not count"})
    assert (
        digest_file(tmp_path / "w.safetensors")
        == tensors_digest(tensors.items())
        == tensors_digest(reversed(tensors.items()))
    )


def test_numpy_and_torch_tensors_have_the_same_digest():
    import torch

    a = np.arange(4, dtype=np.float32).reshape(2, 2).T  # not contiguous
    assert (
        tensors_digest([("x", a)])
        == tensors_digest([("x", torch.from_numpy(a))])
        == tensors_digest([("x", np.array([[0, 2], [1, 3]], np.float32))])
    )


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


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:5], lambda b: b"", lambda b: b"\xff" * 64, lambda b: b + b"x"]
)
def test_a_damaged_file_is_named(tmp_path, damage):
    from safetensors.numpy import save

    path = tmp_path / "w.safetensors"
    path.write_bytes(damage(save({"x": np.ones(8, np.float32)})))
    with pytest.raises(WeightsUnverified, match=r"w\.safetensors is no complete safetensors file"):
        digest_file(path)


# --- canary


def test_the_canary_compares_all_tokens_of_all_completions():
    found = disagreement([completion([-1.0, -2.0]), completion([-0.5])], [np.array([-1.0, -2.25]), np.array([-0.625])])
    assert found == Disagreement(median=0.125, high=0.25, most=0.25)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_log_prob_that_is_not_finite_fails_the_canary_whatever_is_accepted(bad):
    found = disagreement([completion([-1.0] * 63 + [bad])], [np.full(64, -1.0)])
    assert found.most == float("inf")
    assert not Tolerance.calibrated([Disagreement(0.1, 0.4, 2.0)], ceiling=0.5).accepts(found)


def test_one_rare_token_in_sixty_four_does_not_decide_in_low_precision_but_does_in_fp32():
    found = disagreement([completion([-1.0] * 63 + [-9.0])], [np.array([-1.01] * 63 + [-8.0])])
    assert found.most == 1.0 and found.high == pytest.approx(0.01)
    assert Tolerance.calibrated([Disagreement(0.01, 0.02, 0.1)], ceiling=0.5).accepts(found)
    assert not Tolerance.exact(0.1).accepts(found)


def test_a_calibrated_tolerance_is_four_times_the_numerics_and_never_beyond_the_ceiling():
    assert Tolerance.calibrated(
        [Disagreement(0.01, 0.05, 0.3), Disagreement(0.02, 0.04, 0.9)], ceiling=0.5
    ) == Tolerance(0.08, 0.2, 5.0)
    assert Tolerance.calibrated([Disagreement(0.2, 0.4, 0.9)], ceiling=0.5) == Tolerance(0.5, 0.5, 5.0)
    assert Tolerance.calibrated([Disagreement(0.0, 0.0, 0.0)], ceiling=0.5) == Tolerance(1e-3, 1e-3, 5.0)


@pytest.mark.parametrize("scores", [[np.zeros(2)], []])
def test_scores_that_do_not_align_are_a_bug(scores):
    with pytest.raises(ValueError, match="cannot be compared"):
        disagreement([completion([-1.0])], scores)


def test_a_canary_without_tokens_proves_nothing():
    with pytest.raises(ValueError, match="cannot be compared"):
        disagreement([], [])


# --- publisher

SOON = Deadline(0.05, "timeouts.push_s")


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
    def __init__(self, fails: str = "", lags: float = 0, name: str = "rollout-0") -> None:
        self.fails, self.lags, self.version, self.name = fails, lags, 0, name
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
    assert sorted(f.name for f in (tmp_path / "push").iterdir()) == ["spare", "v2.safetensors"]
    await p.close()
    assert not (tmp_path / "push").exists()


async def test_weights_that_fine_tuning_changed_are_written_anew_though_the_version_is_the_same(tmp_path):
    """The cold start publishes version 0 again after some more supervised steps."""

    class Tuned(FakeLearner):
        written = 0

        async def publish(self, path):
            self.written += 1
            await super().publish(path)
            return f"digest of writing {self.written}"

    p = WeightPublisher(Tuned(), [FakeEngine()], tmp_path / "push", [[5]], tolerance=1e-4, canary_tokens=3)
    assert [(await p.publish(0)).digest for _ in range(2)] == ["digest of writing 1", "digest of writing 2"]


async def test_what_a_newcomer_had_written_is_pushed_to_the_others_without_being_written_again(tmp_path):
    engines = [FakeEngine()]
    p = publisher(engines, tmp_path)
    await publish(p, 1)
    p.learner.updates = 2
    await p.join(newcomer := FakeEngine())
    published, p.learner.publish = p.learner.publish, None  # nobody may ask for it
    assert (await p.publish(2)).digest == "digest of update 2" and engines[0].version == newcomer.version == 2
    p.learner.publish = published
    assert (await publish(p, 3)).digest == "digest of update 3"


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
    assert engines[1].verdicts[0].startswith("Version 1: 1 nats (median 1, 95 % quantile 1): the weights arrived")


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
    assert push_directory(tmp_path, None).parent == tmp_path, "a size that is not known may be too large"


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


async def test_a_newcomer_on_a_node_that_came_later_gets_the_last_push_where_it_sees_it(tmp_path):
    """A run that began on one node pushes through that node's shared memory."""
    seen = []

    class Elsewhere(FakeEngine):
        async def update_weights(self, path, version, digest, canary):
            seen.append(path.parent)
            assert path.exists()
            return await super().update_weights(path, version, digest, canary)

    memory, shared = tmp_path / "memory", tmp_path / "shared"
    there = [memory]
    first = Elsewhere()
    p = WeightPublisher(FakeLearner(), [first], memory, [[1, 2]], tolerance=1e-4, place=lambda: there[0])
    await publish(p, 1)
    there[0] = shared
    newcomer = Elsewhere()
    await p.join(newcomer)
    assert newcomer.version == 1 and seen == [memory, shared] and not memory.exists()
    p.engines.append(newcomer)
    await publish(p, 2)
    assert first.version == newcomer.version == 2 and seen[2:] == [shared, shared]
    await p.close()
    assert not shared.exists()


async def test_a_newcomer_that_samples_from_other_weights_is_refused(tmp_path):
    p = publisher([FakeEngine()], tmp_path)
    await publish(p, 1)
    with pytest.raises(WeightsUnverified, match="1 nats"):
        await p.join(FakeEngine(lags=1))


async def test_a_newcomer_waits_for_the_step_and_for_no_drain(tmp_path):
    """It joins between the step and the push with the weights that the push brings to the others; written once."""
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
    assert sorted(f.name for f in p.transport.files.directory.iterdir()) == ["spare", "v2.safetensors"]


async def test_a_learner_whose_own_scores_are_not_finite_is_named_and_not_the_engine(tmp_path):
    p = publisher([FakeEngine()], tmp_path)
    p.learner.updates = float("nan")
    with pytest.raises(Diverged, match="the weights are broken"):
        await p.publish(1)
    assert p.engines[0].verdicts == []


# --- calibration


def uncalibrated(engines, tmp_path) -> WeightPublisher:
    p = publisher(engines, tmp_path)
    p.tolerance = None
    return p


async def test_a_low_precision_tolerance_is_four_times_what_freshly_loaded_engines_differ_by(tmp_path):
    tolerance = await uncalibrated([FakeEngine(lags=0.01), FakeEngine()], tmp_path).calibrate()
    assert tolerance.high == tolerance.median == pytest.approx(0.04)
    assert f"{tolerance:.2g}" == "0.04"


async def test_it_is_kept_by_the_publisher_of_restarted_ranks(tmp_path):
    tolerance = await uncalibrated([FakeEngine(lags=0.01)], tmp_path).calibrate()
    p = WeightPublisher(
        FakeLearner(), [FakeEngine(lags=0.03)], tmp_path / "push", [[5]], tolerance=tolerance, canary_tokens=3
    )
    assert (await publish(p, 1)).refused == 0


@pytest.mark.parametrize("lags", [2.0, 0.6, float("nan"), float("inf")])
async def test_engines_that_differ_beyond_the_ceiling_at_the_start_have_another_model_and_the_causes_are_said(
    tmp_path, lags
):
    engines = [FakeEngine(lags=lags, name="rollout-0"), FakeEngine(lags=lags, name="rollout-1")]
    with pytest.raises(
        ConfigError,
        match=(
            r"rollout-0 and the learner differ by .* vllm\.canary_ceiling = 0\.5 .*tokenizers; a quantised engine"
            r" .*rope"
        ),
    ):
        await uncalibrated(engines, tmp_path).calibrate()


async def test_one_engine_that_differs_at_the_start_is_replaced_and_calibrates_nothing(tmp_path):
    engines = [FakeEngine(lags=0.01), FakeEngine(lags=float("nan"), name="rollout-1")]
    tolerance = await uncalibrated(engines, tmp_path).calibrate()
    assert tolerance.high == pytest.approx(0.04)
    assert engines[0].verdicts == []
    assert (
        engines[1]
        .verdicts[0]
        .startswith("Before the first push: rollout-1 and the learner differ by log-probs that are not finite")
    )


async def test_calibration_goes_on_without_engines_that_died_or_hang(tmp_path):
    class Gone(FakeEngine):
        async def canary(self, prompt_ids, max_tokens, seed):
            raise EngineGone("died")

    class Hung(FakeEngine):
        async def canary(self, prompt_ids, max_tokens, seed):
            await asyncio.get_running_loop().create_future()

    hung = Hung(name="rollout-1")
    p = uncalibrated([Gone(), hung, FakeEngine(lags=0.01)], tmp_path)
    p.deadline = p.transport.deadline = SOON
    assert (await p.calibrate()).high == pytest.approx(0.04)
    assert "The canary of rollout-1 was not over within timeouts.push_s" in hung.verdicts[0]
    p = uncalibrated([hung], tmp_path)
    p.deadline = p.transport.deadline = SOON
    with pytest.raises(WeightsUnverified, match="No engine answered the canary"):
        await p.calibrate()


# --- engines that hang


async def never(*args, **kwargs):
    await asyncio.get_running_loop().create_future()


async def test_one_hung_engine_of_three_does_not_keep_the_push_from_the_others(tmp_path):
    hung = FakeEngine(name="rollout-1")
    hung.update_weights = never
    engines = [FakeEngine(), hung, FakeEngine()]
    p = publisher(engines, tmp_path)
    p.deadline = p.transport.deadline = SOON
    assert (await publish(p, 1)).refused == 1
    assert [e.version for e in engines] == [1, 0, 1] and engines[0].verdicts == engines[2].verdicts == [1]
    assert "The push of version 1 to rollout-1 was not over within timeouts.push_s" in hung.verdicts[0]


async def test_an_engine_that_cannot_be_told_its_verdict_is_discarded(tmp_path):
    hung, well = FakeEngine(name="rollout-1"), FakeEngine()
    hung.proved = never
    p = publisher([hung, well], tmp_path)
    p.deadline = p.transport.deadline = SOON
    await publish(p, 1)
    assert well.verdicts == [1]
    assert "The verdict on version 1 to rollout-1 was not over" in hung.verdicts[0]


async def test_an_engine_that_hangs_in_its_own_end_does_not_keep_the_run(tmp_path):
    hung = FakeEngine(fails="other digest")
    hung.discard = never
    p = publisher([hung, FakeEngine()], tmp_path)
    p.deadline = p.transport.deadline = SOON
    assert (await publish(p, 1)).refused == 1


async def test_a_newcomer_that_hangs_is_refused_and_others_may_join(tmp_path):
    p = publisher([], tmp_path)
    p.deadline = p.transport.deadline = SOON
    await publish(p, 1)
    hung, newcomer = FakeEngine(name="rollout-3"), FakeEngine()
    hung.update_weights = never
    with pytest.raises(WeightsUnverified, match="rollout-3 was not over within"):
        await p.join(hung)
    await p.join(newcomer)
    assert newcomer.version == 1


async def test_a_push_that_no_engine_agrees_with_says_what_may_be_wrong(tmp_path):
    engines = [FakeEngine(lags=1), FakeEngine(lags=1)]
    assert (await publish(publisher(engines, tmp_path), 1)).refused == 2
    assert "No engine agrees. Likely causes:" in engines[0].verdicts[0]
