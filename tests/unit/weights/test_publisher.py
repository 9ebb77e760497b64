"""What the publisher makes of engines that misbehave."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import numpy as np
import pytest

from openrlhf_tir.errors import (
    ConfigError,
    DeadlineMissed,
    Diverged,
    EngineGone,
    LearnerDied,
    WeightsMisloaded,
    WeightsUnverified,
)
from openrlhf_tir.waiting.deadlines import Deadline
from openrlhf_tir.weights.file_transport import FileTransport
from openrlhf_tir.weights.publisher import CEILING, LIKELY_CAUSES, PUSH, WeightPublisher
from openrlhf_tir.weights.push_files import push_directory
from openrlhf_tir.weights.verify import Reference

from ...contract.called_in_process import CalledInProcess
from .test_verify import completion

SOON = Deadline(0.05, "timeouts.push_s")
RARE = 20.0
"""Minus the log-prob of every token at version 0: so improbable that a difference counts as it is."""


class FakeLearner:
    """Log-prob of every token is minus the number of updates and RARE: so is the engine's, if it has the weights."""

    def __init__(self) -> None:
        self.updates = 0

    @property
    def version(self) -> int:
        return self.updates

    async def publish(self, path: Path) -> str:
        path.write_bytes(b"weights")
        return f"update {self.updates}"

    async def score(self, sequences):
        return [np.full(len(s) - 1, -RARE - self.updates) for s in sequences]


class FakeEngine(CalledInProcess):
    def __init__(self, fails: str = "", lags: float = 0, name: str = "rollout-0") -> None:
        self.fails, self.lags, self.version, self.name = fails, lags, 0, name
        self.verdicts: list[int | str] = []

    async def update_weights(self, path: Path, version: int, digest: str, canary, link=None):
        assert path.read_bytes() == b"weights"
        if self.fails:
            raise WeightsUnverified(self.fails)
        self.version = version
        return await self.sample_canary(*canary)

    async def sample_canary(self, prompt_ids, max_tokens, seed):
        return [completion([-RARE - self.version + self.lags] * max_tokens, self.version) for _ in prompt_ids]

    async def confirm_weights(self, version: int) -> dict[str, float]:
        self.verdicts.append(version)
        return {}

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
    assert (report.version, report.digest, report.canary_max_diff) == (2, "update 2", 0.0)
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
    assert (await p.publish(2)).digest == "update 2" and engines[0].version == newcomer.version == 2
    p.learner.publish = published
    assert (await publish(p, 3)).digest == "update 3"


async def test_unchanged_weights_are_an_error_only_after_an_update_that_must_have_changed_something(tmp_path):
    p = publisher([FakeEngine()], tmp_path)
    await publish(p, 1)
    with pytest.raises(WeightsUnverified, match=r" 2 .*update 1\b"):
        await p.publish(2, must_differ=True)
    p.learner.publish = equal_weights
    assert (await p.publish(2)).digest == (await p.publish(3)).digest


async def test_after_weights_that_were_refused_as_unchanged_a_newcomer_gets_the_learners_weights(tmp_path):
    """The push before stays the last one. It is behind the learner, whose weights are then written for the newcomer."""
    p = publisher([FakeEngine()], tmp_path)
    await publish(p, 1)
    unchanged, p.learner.publish, p.learner.updates = p.learner.publish, equal_weights, 2
    with pytest.raises(WeightsUnverified):
        await p.publish(2, must_differ=True)
    p.learner.publish = unchanged
    await p.join(newcomer := FakeEngine())
    assert (newcomer.version, newcomer.verdicts) == (2, [2])


async def equal_weights(path: Path) -> str:
    """A learner whose updates change nothing: the learning rate is 0."""
    path.write_bytes(b"weights")
    return "update 1"


async def test_one_engine_that_refuses_does_not_keep_the_push_from_the_others(tmp_path):
    engines = [FakeEngine(), FakeEngine(fails="other digest"), FakeEngine()]
    report = await publish(publisher(engines, tmp_path), 1)
    assert (report.refused, report.pushes_repeated, report.canary_max_diff) == (1, 0, 0.0)
    assert [e.version for e in engines] == [1, 0, 1]
    assert engines[0].verdicts == engines[2].verdicts == [1]
    assert re.search(r" 1: other digest\b", *engines[1].verdicts)


async def test_an_engine_that_samples_from_older_weights_is_discarded(tmp_path):
    engines = [FakeEngine(), FakeEngine(lags=1)]
    report = await publish(publisher(engines, tmp_path), 1)
    assert report.refused == 1
    assert engines[0].verdicts == [1]
    (verdict,) = engines[1].verdicts
    assert re.search(r" 1: .*update 1\b.*vllm\.canary_tolerance", verdict)


async def test_an_engine_whose_canary_is_of_another_version_is_discarded_though_the_numbers_agree(tmp_path):
    class Unswitched(FakeEngine):
        async def sample_canary(self, prompt_ids, max_tokens, seed):
            return [completion([-RARE - 1] * max_tokens, version=0) for _ in prompt_ids]

    engine = Unswitched()
    assert (await publish(publisher([engine], tmp_path), 1)).refused == 1
    (verdict,) = engine.verdicts
    assert re.search(r" 1: .*\bversion", verdict) and "vllm.canary_tolerance" not in verdict, "the numbers agree"


async def test_a_bug_in_an_engine_is_raised_and_not_taken_for_a_bad_push(tmp_path):
    class Buggy(FakeEngine):
        async def update_weights(self, path, version, digest, canary, link=None):
            raise KeyError("a bug")

    with pytest.raises(KeyError):
        await publish(publisher([Buggy()], tmp_path), 1)


def test_a_publisher_without_canary_prompts_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="canary_prompts"):
        WeightPublisher(FakeLearner(), [FakeEngine()], tmp_path, [], tolerance=1e-4)


def test_the_file_goes_to_the_run_directory_when_memory_is_short_or_engines_are_elsewhere(tmp_path):
    assert push_directory(tmp_path, 1 << 60).parent == tmp_path
    assert push_directory(tmp_path, 0, one_node=False).parent == tmp_path
    assert push_directory(tmp_path, None).parent == tmp_path, "a size that is not known may be too large"


def test_two_runs_of_the_same_name_push_to_different_places():
    assert push_directory(Path("/a/run"), 0) != push_directory(Path("/b/run"), 0)


class DeadEngine(FakeEngine):
    async def update_weights(self, path, version, digest, canary, link=None):
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
        async def update_weights(self, path, version, digest, canary, link=None):
            seen.append(path.parent)
            assert path.exists()
            return await super().update_weights(path, version, digest, canary)

    memory, shared = tmp_path / "memory", tmp_path / "shared"
    there = [memory]
    first = Elsewhere()
    learner = FakeLearner()
    transport = FileTransport(learner, memory, delta=False, deadline=PUSH, place=lambda: there[0])
    p = WeightPublisher(learner, [first], memory, [[1, 2]], tolerance=1e-4, transport=transport)
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
    with pytest.raises(WeightsUnverified, match=r"update 1\b.*vllm\.canary_tolerance"):
        await p.join(FakeEngine(lags=1))


async def test_a_newcomer_waits_for_the_step_and_for_no_drain(tmp_path):
    """It joins between the step and the push with the weights that the push brings to the others; written once."""
    p = publisher([FakeEngine()], tmp_path)
    await publish(p, 1)
    newcomer = FakeEngine()
    async with p.exclusive_learner():
        joining = asyncio.create_task(p.join(newcomer))
        await asyncio.sleep(0)
        p.learner.updates = 2
        assert newcomer.version == 0
    await joining
    assert newcomer.version == 2 and p.engines[0].version == 1
    p.engines.append(newcomer)
    await p.publish(2)
    assert [e.version for e in p.engines] == [2, 2]
    assert sorted(f.name for f in p.transport.directory.iterdir()) == ["spare", "v2.safetensors"]


async def test_a_learner_whose_own_scores_are_not_finite_is_named_and_not_the_engine(tmp_path):
    p = publisher([FakeEngine()], tmp_path)
    p.learner.updates = float("nan")
    with pytest.raises(Diverged, match=r" 1\b.*actor\.learning_rate"):
        await p.publish(1)
    assert p.engines[0].verdicts == []


# --- calibration


def uncalibrated(engines, tmp_path) -> WeightPublisher:
    p = publisher(engines, tmp_path)
    p.reference = Reference(CEILING)
    return p


async def test_the_first_threshold_is_of_what_freshly_loaded_engines_differ_by(tmp_path):
    reference = await uncalibrated([FakeEngine(lags=0.01)], tmp_path).calibrate()
    assert reference.tolerance.level == pytest.approx(0.02, rel=1e-4)


async def test_the_reference_is_kept_by_the_publisher_of_restarted_ranks_and_follows_what_it_accepts(tmp_path):
    reference = await uncalibrated([FakeEngine(lags=0.01)], tmp_path).calibrate()
    engine = FakeEngine(lags=0.02)
    p = WeightPublisher(FakeLearner(), [engine], tmp_path / "push", [[5]], tolerance=reference, canary_tokens=3)
    assert (await publish(p, 1)).refused == 0
    assert p.reference.tolerance.level == pytest.approx(2 * 0.015, rel=1e-4)
    engine.lags = 0.04
    assert (await publish(p, 2)).refused == 1
    assert p.reference.tolerance.level == pytest.approx(2 * 0.015, rel=1e-4), "what was refused is no reference"


# --- what is done about a proof that fails


class Unsure(FakeEngine):
    """`lags` by call: what the engine is off by in the first, second, ... canary of a push."""

    def __init__(self, *lags: float) -> None:
        super().__init__()
        self.by_call = list(lags)
        self.asked: list[tuple[list[list[int]], int]] = []
        self.pushes = 0

    async def update_weights(self, path, version, digest, canary, link=None):
        self.pushes += 1
        return await super().update_weights(path, version, digest, canary)

    async def sample_canary(self, prompt_ids, max_tokens, seed):
        self.asked.append((prompt_ids, seed))
        self.lags = self.by_call.pop(0)
        return await super().sample_canary(prompt_ids, max_tokens, seed)


TEXTS = [[n, n] for n in range(16)]


def proving(engine, tmp_path) -> WeightPublisher:
    return WeightPublisher(FakeLearner(), [engine], tmp_path / "push", TEXTS, tolerance=0.1, canary_tokens=20)


async def test_a_proof_that_fails_is_repeated_on_other_texts_and_pooled_with_the_first(tmp_path):
    engine = Unsure(0.15, 0.03)
    report = await publish(proving(engine, tmp_path), 1)
    assert engine.verdicts == [1] and engine.pushes == 1
    assert [texts for texts, _ in engine.asked] == [TEXTS[:8], TEXTS[8:]]
    assert report.canary_level == pytest.approx((0.15 + 0.03) / 2, rel=1e-4)
    assert report.canary_excess == pytest.approx(0.9, rel=1e-4)
    assert (report.refused, report.canary_repeats, report.pushes_repeated) == (0, 1, 0)


async def test_a_second_set_of_texts_does_not_whitewash_the_first(tmp_path):
    engine = Unsure(0.3, 0.0, 0.0)
    report = await publish(proving(engine, tmp_path), 1)
    assert engine.pushes == 2, "0.15 on average over both"
    assert (report.canary_repeats, report.pushes_repeated, engine.verdicts) == (1, 1, [1])


async def test_an_engine_is_given_up_only_after_two_proofs_of_two_pushes(tmp_path):
    engine = Unsure(1.0, 1.0, 1.0, 1.0)
    report = await publish(proving(engine, tmp_path), 1)
    assert (report.refused, engine.pushes, len(engine.asked)) == (1, 2, 4)
    assert [type(verdict) for verdict in engine.verdicts] == [str]


async def test_the_second_round_samples_other_tokens_where_there_are_no_other_texts(tmp_path):
    engine = Unsure(1.0, 0.0, 0.0)
    p = WeightPublisher(FakeLearner(), [engine], tmp_path / "push", [[1, 2]], tolerance=0.1, canary_tokens=20)
    await publish(p, 1)
    assert len({seed for _, seed in engine.asked[:2]}) == 2


async def test_weights_that_were_not_loaded_are_pushed_again_without_a_second_round(tmp_path):
    class Misloading(Unsure):
        async def update_weights(self, path, version, digest, canary, link=None):
            sampled = await super().update_weights(path, version, digest, canary)
            if self.pushes == 1:
                raise WeightsMisloaded("1 of 2 tensors differ")
            return sampled

    engine = Misloading(0.0, 0.0)
    report = await publish(proving(engine, tmp_path), 1)
    assert (engine.pushes, engine.verdicts, report.refused, report.canary_repeats) == (2, [1], 0, 0)


async def test_only_the_engines_in_doubt_are_pushed_to_again(tmp_path):
    well, unsure = Unsure(0.0), Unsure(1.0, 1.0, 0.0)
    p = proving(well, tmp_path)
    p.engines.append(unsure)
    report = await publish(p, 1)
    assert (well.pushes, unsure.pushes, report.refused) == (1, 2, 0)
    assert well.verdicts == unsure.verdicts == [1]


async def test_equal_sequences_of_several_engines_are_scored_once(tmp_path):
    p = proving(Unsure(0.0), tmp_path)
    p.engines += [Unsure(0.0), Unsure(0.0)]
    asked = []
    score = p.learner.score

    async def counted(sequences):
        asked.append(len(sequences))
        return await score(sequences)

    p.learner.score = counted
    await publish(p, 1)
    assert asked == [8]


# --- membership and proof change in one step


async def test_a_newcomer_is_admitted_before_the_next_push_can_begin(tmp_path):
    """A push that waits for its turn while a newcomer is proved finds it among the engines."""
    p = publisher([FakeEngine()], tmp_path)
    await publish(p, 1)
    newcomer = FakeEngine()
    joining = asyncio.create_task(p.join(newcomer, lambda: p.engines.append(newcomer)))
    p.learner.updates = 2
    await asyncio.sleep(0)
    pushing = asyncio.create_task(p.publish(2))
    await asyncio.gather(joining, pushing)
    assert newcomer.version == 2 and newcomer.verdicts[-1] == 2


async def test_after_a_restart_of_the_learner_an_engine_is_proved_though_nothing_was_pushed_yet(tmp_path):
    p = publisher([], tmp_path)
    p.learner.updates = 7
    admitted = []
    await p.join(newcomer := FakeEngine(), lambda: admitted.append(newcomer.verdicts.copy()))
    assert newcomer.version == 7 and admitted == [[7]], "proved first"


async def test_an_engine_that_is_not_proved_is_not_admitted(tmp_path):
    p = publisher([], tmp_path)
    admitted = []
    with pytest.raises(WeightsUnverified):
        await p.join(FakeEngine(lags=1), lambda: admitted.append(1))
    assert admitted == []


# --- weights that must differ


async def test_weights_that_only_a_newcomer_was_sent_are_new_to_the_others(tmp_path):
    """Written for a newcomer after fine-tuning, and then pushed: not those of the last push, though last written."""
    p = publisher([FakeEngine()], tmp_path)
    await publish(p, 1)
    async with p.fine_tuning():
        p.learner.updates = 2
    await p.join(FakeEngine())
    async with p.fine_tuning():
        pass  # a step that changes nothing
    await p.publish(2, must_differ=True)
    assert p.engines[0].version == 2


async def test_weights_that_a_newcomer_was_sent_and_that_the_members_have_already_are_an_error(tmp_path):
    p = publisher([FakeEngine()], tmp_path)
    await publish(p, 1)
    p.learner.publish = equal_weights
    p.learner.updates = 2
    await p.join(FakeEngine())
    with pytest.raises(WeightsUnverified):
        await p.publish(2, must_differ=True)


@pytest.mark.parametrize("lags", [2.0, 0.6, float("nan"), float("inf")])
async def test_engines_that_differ_beyond_the_ceiling_at_the_start_have_another_model_and_the_causes_are_said(
    tmp_path, lags
):
    engines = [FakeEngine(lags=lags, name="rollout-0"), FakeEngine(lags=lags, name="rollout-1")]
    with pytest.raises(
        ConfigError,
        match=r"rollout-0 .*vllm\.canary_tolerance",
    ):
        await uncalibrated(engines, tmp_path).calibrate()


async def test_one_engine_that_differs_at_the_start_is_replaced_and_calibrates_nothing(tmp_path):
    engines = [FakeEngine(lags=0.01), FakeEngine(lags=float("nan"), name="rollout-1")]
    reference = await uncalibrated(engines, tmp_path).calibrate()
    assert reference.tolerance.level == pytest.approx(0.02, rel=1e-4)
    assert engines[0].verdicts == []
    (verdict,) = engines[1].verdicts
    assert re.search(r"rollout-1 .*vllm\.dtype.*ds\.param_dtype", verdict)


async def test_calibration_goes_on_without_engines_that_died_or_hang(tmp_path):
    class Gone(FakeEngine):
        async def sample_canary(self, prompt_ids, max_tokens, seed):
            raise EngineGone("died")

    class Hung(FakeEngine):
        async def sample_canary(self, prompt_ids, max_tokens, seed):
            await asyncio.get_running_loop().create_future()

    hung = Hung(name="rollout-1")
    p = uncalibrated([Gone(), hung, FakeEngine(lags=0.01)], tmp_path)
    p.deadline = p.transport.deadline = SOON
    assert (await p.calibrate()).tolerance.level == pytest.approx(0.02, rel=1e-4)
    assert "timeouts.push_s" in hung.verdicts[0]
    p = uncalibrated([hung], tmp_path)
    p.deadline = p.transport.deadline = SOON
    with pytest.raises(WeightsUnverified, match=r"^0 \w+ 1 "):
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
    assert (await publish(p, 1)).refused == 0, "it is gone, and no evidence against the weights"
    assert [e.version for e in engines] == [1, 0, 1] and engines[0].verdicts == engines[2].verdicts == [1]
    assert "timeouts.push_s" in hung.verdicts[0]


async def test_an_engine_that_cannot_be_told_its_verdict_is_discarded(tmp_path):
    hung, well = FakeEngine(name="rollout-1"), FakeEngine()
    hung.confirm_weights = never
    p = publisher([hung, well], tmp_path)
    p.deadline = p.transport.deadline = SOON
    await publish(p, 1)
    assert well.verdicts == [1]
    assert "timeouts.push_s" in hung.verdicts[0]


async def test_a_newcomer_that_hangs_is_refused_and_others_may_join(tmp_path):
    p = publisher([], tmp_path)
    p.deadline = p.transport.deadline = SOON
    await publish(p, 1)
    hung, newcomer = FakeEngine(name="rollout-3"), FakeEngine()
    hung.update_weights = never
    with pytest.raises(EngineGone, match="rollout-3"):
        await p.join(hung)
    await p.join(newcomer)
    assert newcomer.version == 1


async def test_a_newcomer_that_cannot_be_told_its_verdict_does_not_join(tmp_path):
    p = publisher([], tmp_path)
    p.deadline = p.transport.deadline = SOON
    await publish(p, 1)
    hung, admitted = FakeEngine(name="rollout-3"), []
    hung.confirm_weights = never
    with pytest.raises(EngineGone, match="rollout-3"):
        await p.join(hung, lambda: admitted.append(hung))
    assert admitted == []


async def test_a_push_that_no_engine_agrees_with_says_what_may_be_wrong(tmp_path):
    engines = [FakeEngine(lags=1), FakeEngine(lags=1)]
    assert (await publish(publisher(engines, tmp_path), 1)).refused == 2
    assert LIKELY_CAUSES in engines[0].verdicts[0]


async def test_an_engine_that_is_proved_is_told_before_another_engines_push_is_repeated(tmp_path):
    first = FakeEngine()
    seen = []

    class Misloads(FakeEngine):
        async def update_weights(self, path, version, digest, canary, link=None):
            seen.append(list(first.verdicts))
            if len(seen) == 1:
                raise WeightsMisloaded("one tensor differs")
            return await super().update_weights(path, version, digest, canary)

    second = Misloads()
    assert (await publish(publisher([first, second], tmp_path), 1)).refused == 0
    assert seen == [[], [1]] and first.verdicts == second.verdicts == [1]


async def test_a_full_push_that_cannot_be_prepared_refuses_the_engines_that_need_it_and_no_others(tmp_path):
    class Misloads(FakeEngine):
        async def update_weights(self, path, version, digest, canary, link=None):
            raise WeightsMisloaded("one tensor differs")

    engines = [FakeEngine(), Misloads()]
    p = publisher(engines, tmp_path)

    async def full_disk():
        raise DeadlineMissed("the learner did not write")

    p.transport.require_full_push = full_disk
    assert (await publish(p, 1)).refused == 1
    assert engines[0].verdicts == [1] and [type(v) for v in engines[1].verdicts] == [str]


@pytest.mark.parametrize("error", [WeightsUnverified("torn"), DeadlineMissed("the learner did not send")])
async def test_a_full_push_that_fails_refuses_the_engines_that_need_it_and_no_others(tmp_path, error):
    class Misloads(FakeEngine):
        async def update_weights(self, path, version, digest, canary, link=None):
            raise WeightsMisloaded("one tensor differs")

    engines = [FakeEngine(), Misloads()]
    p = publisher(engines, tmp_path)
    first_send = p.transport.send
    pushes = []

    async def send(targets, canary):
        pushes.append(len(targets))
        if len(pushes) == 2:
            raise error
        return await first_send(targets, canary)

    p.transport.send = send
    report = await publish(p, 1)
    assert (pushes, report.refused, report.pushes_repeated) == ([2, 1], 1, 1)
    assert engines[0].verdicts == [1] and [type(v) for v in engines[1].verdicts] == [str]


async def test_a_learner_that_dies_while_it_pushes_again_is_no_engines_fault(tmp_path):
    class Misloads(FakeEngine):
        async def update_weights(self, path, version, digest, canary, link=None):
            raise WeightsMisloaded("one tensor differs")

    engines = [FakeEngine(), Misloads()]
    p = publisher(engines, tmp_path)

    async def dies():
        raise LearnerDied("a rank is lost")

    p.transport.require_full_push = dies
    with pytest.raises(LearnerDied):
        await publish(p, 1)
    assert engines[1].verdicts == []
