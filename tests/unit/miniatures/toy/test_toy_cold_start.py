"""The cold start's schedule, its gates, and what it does when they are missed. Learner and evaluation are fakes."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from miniatures.toy.cold_start import Schedule, Stage, batches, check_gates, cold_start, repair
from miniatures.toy.lessons import artist, mending, retool
from openrlhf_tir.errors import ColdStartError

SHORT = Schedule(
    stages=(Stage(6, 1.0), Stage(4, 0.0)),
    batch_size=3,
    lr=1.0,
    warmup_steps=2,
    final_lr_ratio=0.2,
    repair_lr_ratio=0.8,
    max_repairs=2,
)


@dataclass
class Measured:
    accuracy: float = 0.35
    code_ratio: float = 0.32
    format_ok: float = 0.99
    code_correct: float = 0.95
    parts: dict[str, float] = field(default_factory=dict)


def test_the_learning_rate_warms_up_and_falls_linearly_over_all_stages():
    # Ten steps: 1/2, 1, then from 1 towards 0.2 over the remaining eight: 1 - 0.8 * k / 8.
    expected = [0.5, 1.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]
    assert [SHORT.lr_at(step) for step in range(10)] == pytest.approx(expected)


def test_stages_follow_one_another_with_their_tool_ratio():
    made = list(batches(SHORT, Random(0)))
    assert [b.tool_ratio for b in made] == [1.0] * 6 + [0.0] * 4
    assert all(len(b.rows) == 3 for b in made)
    masked = [sum((row.weights == 0).sum() > 35 for row in b.rows) for b in made]
    assert masked[:6] == [3] * 6, "a tool trace masks the question and the tool's output"


def test_the_same_seed_gives_the_same_batches():
    def ids(seed):
        return [row.token_ids.tolist() for b in batches(SHORT, Random(seed)) for row in b.rows]

    assert ids(1) == ids(1) != ids(2)


def test_figures_inside_every_gate_miss_none():
    assert check_gates(Measured()) == []
    assert check_gates(Measured(accuracy=0.25, code_ratio=0.40, format_ok=0.95, code_correct=0.92)) == []


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("accuracy", 0.46, "accuracy 0.460 is outside 0.25..0.45"),
        ("code_ratio", 0.22, "code_ratio 0.220 is outside 0.25..0.40"),
        ("code_ratio", 0.400391, "code_ratio 0.400391 is outside 0.25..0.40"),
        ("format_ok", 0.94, "format_ok 0.940 is outside 0.95..1.00"),
        ("code_correct", 0.8, "code_correct 0.800 is outside 0.92..1.00"),
    ],
)
def test_a_missed_gate_is_named_with_its_value_and_range(name, value, sentence):
    assert check_gates(Measured(**{name: value})) == [sentence]


def test_too_little_code_settles_again_with_more_of_it():
    # The gate's middle is 0.325: 0.225 measured at a ratio of 0.28 is 0.1 short.
    assert repair(Measured(code_ratio=0.225), 0.28) == ([Stage(60, pytest.approx(0.38))], pytest.approx(0.38))


def test_code_that_does_not_work_is_learned_further_before_settling():
    stages, _ = repair(Measured(code_correct=0.7), 0.28)
    assert [s.tool_ratio for s in stages] == pytest.approx([0.85, 0.285])


def test_too_much_accuracy_with_working_code_lowers_the_amount_of_code():
    stages, ratio = repair(Measured(accuracy=0.47, code_ratio=0.39), 0.30)
    assert len(stages) == 1 and ratio == pytest.approx(0.26)


def test_artists_ratio_is_of_thoughts_so_its_format_moves_it_and_is_no_weakness():
    # The gate's middle is 0.40: 0.53 measured is 0.13 too much.
    stages, ratio = repair(
        Measured(accuracy=0.7, format_ok=0.53, code_correct=0.7), 0.4, artist.GATES, artist.LESSON.steered
    )
    assert stages == [Stage(60, ratio)] and ratio == pytest.approx(0.27)
    _, ratio = repair(
        Measured(accuracy=0.9, format_ok=0.40, code_correct=0.7), 0.4, artist.GATES, artist.LESSON.steered
    )
    assert ratio == pytest.approx(0.4), "how often it thinks changes no answer"


def test_retools_ratio_is_of_exercises_so_no_figure_of_its_base_moves_it():
    _, ratio = repair(Measured(accuracy=0.3, code_ratio=0.1), 0.5, retool.GATES, retool.LESSON.steered)
    assert ratio == 0.5


def of_mending(accuracy: float, viewed: float) -> Measured:
    return Measured(accuracy=accuracy, parts={"reward/viewed_first": viewed})


def test_a_part_of_the_reward_has_a_gate_and_a_part_that_no_response_has_is_zero():
    assert check_gates(of_mending(0.24, 0.25), mending.GATES) == []
    assert check_gates(Measured(accuracy=0.2), mending.GATES) == ["reward/viewed_first 0.000 is outside 0.18..0.32"]


def test_mendings_ratio_is_of_files_that_are_read_first():
    # The gate's middle is 0.25: 0.40 measured is 0.15 too much.
    stages, ratio = repair(of_mending(0.38, 0.40), 0.3, mending.GATES, mending.LESSON.steered)
    assert stages == [Stage(60, ratio)] and ratio == pytest.approx(0.15)


def test_files_that_are_read_first_often_enough_and_mended_badly_are_mended_in_more_examples():
    stages, ratio = repair(of_mending(0.05, 0.25), 0.3, mending.GATES, mending.LESSON.steered)
    assert [s.tool_ratio for s in stages] == [0.85, ratio] and ratio == pytest.approx(0.3)


class Scripted:
    """A learner that counts its steps and an evaluation that reads its figures off a list."""

    def __init__(self, *figures: Measured) -> None:
        self.figures, self.lrs, self.steps_at_evaluation = list(figures), [], []

    async def sft_step(self, rows, lr):
        self.lrs.append(lr)
        return {"loss": 1.0}

    async def evaluate(self):
        self.steps_at_evaluation.append(len(self.lrs))
        return self.figures.pop(0)


async def test_a_base_model_that_passes_at_once_is_not_trained_further():
    run = Scripted(Measured())
    assert await cold_start(run.sft_step, run.evaluate, seed=0, schedule=SHORT) == Measured()
    assert len(run.lrs) == 10


async def test_a_missed_gate_continues_training_from_the_repair_rate_until_it_passes():
    run = Scripted(Measured(code_ratio=0.1), Measured(code_ratio=0.45), Measured())
    await cold_start(run.sft_step, run.evaluate, seed=0, schedule=SHORT)
    assert run.steps_at_evaluation == [10, 70, 130]
    assert run.lrs[10:70] == run.lrs[70:]
    assert (run.lrs[10], run.lrs[40], run.lrs[69]) == pytest.approx((0.8, 0.5, 0.21))  # 60 steps of 0.01 towards 0.2


async def test_repairs_start_from_the_ratio_of_the_last_one():
    seen = []
    run = Scripted(Measured(code_ratio=0.225), Measured(code_ratio=0.225), Measured())
    await cold_start(
        run.sft_step, run.evaluate, seed=0, schedule=SHORT, on_step=lambda batch, metrics: seen.append(batch.tool_ratio)
    )
    # SHORT settles at 0.0: lifted to the least ratio 0.1 by the first repair, by another 0.1 by the second.
    assert (seen[10], seen[70]) == pytest.approx((0.1, 0.2))


async def test_after_the_last_repair_the_command_fails_with_the_figures():
    run = Scripted(*[Measured(code_correct=0.5)] * 3)
    with pytest.raises(ColdStartError, match=r"\b10 \w+ \w+ 2 \w+: code_correct 0\.500 .*0\.92\.\.1\.00"):
        await cold_start(run.sft_step, run.evaluate, seed=0, schedule=SHORT)
