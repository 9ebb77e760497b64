"""Evaluation: what came back of the held-out problems -> figures, or how many samples are missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openrlhf_tir.cluster.jobs.evaluate import evaluate, summarise
from openrlhf_tir.episodes.group import EvalMode
from openrlhf_tir.errors import EngineError, EvaluationFailed
from openrlhf_tir.types import GroupKey, Task
from tests.pipeline.fakes import group_of

pytestmark = pytest.mark.slow  # importing ray
TASKS = [Task(f"p{i}", "0") for i in range(100)]


def meta(i: int):
    """Two samples, one right."""
    return group_of(GroupKey(-1, i), 0)[0]


def test_a_few_lost_samples_are_counted_and_left_out():
    """100 problems of 2 samples: one group never came back, two samples of 200 are lost."""
    figures = summarise(TASKS, [meta(i) for i in range(99)] + ["actor_died"], 2)
    assert (figures.failed, figures.samples, figures.accuracy) == (2, 198, 0.5)


def test_the_parts_of_the_reward_are_means_over_the_samples_that_have_them():
    """One group of two samples, one of a single one."""
    one = replace(meta(0), stats={"calls": 1.0, "seen": 0.5})
    two = replace(meta(1), correct=[True], used_code=[True], stats={"calls": 1.0, "seen": 1.0, "late": 1.0})
    assert summarise(TASKS[:2], [one, two], 2).parts == {"reward/seen": pytest.approx(2 / 3), "reward/late": 1.0}


def test_more_than_two_percent_are_refused_with_how_many_and_why():
    ended = [meta(i) for i in range(96)] + [replace(meta(96), failures={"timeout": 2})] + ["actor_died"] * 3
    with pytest.raises(
        EvaluationFailed, match=r"8 of 200 evaluation samples failed .*\(actor_died 6, timeout 2\)"
    ) as e:
        summarise(TASKS, ended, 2)
    assert (e.value.failed, e.value.samples) == (8, 200)


def test_a_single_sample_that_is_lost_is_no_figure():
    with pytest.raises(EvaluationFailed):
        summarise(TASKS[:1], ["actor_died"], 1)


async def test_a_group_that_fails_does_not_end_the_others():
    class Pool:
        async def run_group(self, key, task, mode):
            if key.prompt == 7:
                raise EngineError("refused")
            return meta(key.prompt), None

    figures = await evaluate(Pool(), TASKS, EvalMode(2, 0.0))
    assert (figures.failed, figures.samples) == (2, 198)
