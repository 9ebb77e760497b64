"""An evaluation that loses its samples says whose fault it was."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from openrlhf_tir.config import Config
from openrlhf_tir.errors import EvaluationFailed
from openrlhf_tir.types import GroupKey, Task
from tests.pipeline.fakes import group_of


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("reward_error", r"\(reward_error 4\).*mine\.py:4: KeyError"),
        ("timeout", r"\(timeout 4\)(?!.*mine\.py)"),
    ],
)
def test_a_reward_that_fails_is_not_taken_for_infrastructure(reason, said):
    from openrlhf_tir.cluster.jobs.evaluate import summarise

    why = {reason: "mine.py:4: KeyError"}
    failed = [group_of(GroupKey(-1, i), 0, failed=reason)[0] for i in range(2)]
    metas = [replace(meta, failures={reason: 2}, why=why) for meta in failed]
    with pytest.raises(EvaluationFailed, match=said) as e:
        summarise([Task("p", "1")] * 2, metas, 2)
    assert (e.value.failed, e.value.samples) == (4, 4)


def test_figures_of_several_environments_are_told_apart_and_of_one_are_not():
    from openrlhf_tir.cluster.jobs.evaluate import summarise

    metas = [group_of(GroupKey(-1, i), 0)[0] for i in range(3)]
    metas[1] = replace(metas[1], correct=[True, True])
    metas[2] = replace(metas[2], correct=[True, True], stats={**metas[2].stats, "calls": 3.0})
    tasks = [Task("p", "1", "calc"), Task("p", "1", "calc"), Task("p", "1", "guess")]
    figures = summarise(tasks, list(metas), 2)
    calc, guess = figures.by_env["calc"], figures.by_env["guess"]
    assert (calc.accuracy, calc.samples, calc.calls) == (0.75, 4, 0.0) and (
        guess.accuracy,
        guess.samples,
        guess.calls,
    ) == (1.0, 2, 3.0)
    assert summarise(tasks[:2], list(metas[:2]), 2).by_env == {}


def test_each_valid_sample_counts_once_in_the_calls_and_an_environment_without_one_has_no_figures():
    """79 groups of 2 samples without a call, one of 1 sample with 4 calls, and one that was lost."""
    from openrlhf_tir.cluster.jobs.evaluate import summarise

    metas = [group_of(GroupKey(-1, i), 0)[0] for i in range(80)]
    one = {"correct": [True], "used_code": [True], "response_tokens": [2], "failures": {"timeout": 1}}
    metas[0] = replace(metas[0], **one, stats={"calls": 4.0})
    tasks = [Task("p", "1", "calc")] * 40 + [Task("p", "1", "guess")] * 40 + [Task("p", "1", "lost")]
    figures = summarise(tasks, [*metas, "timeout"], 2)
    assert (figures.samples, figures.failed, figures.calls) == (159, 3, pytest.approx(4 / 159))
    assert figures.by_env.keys() == {"calc", "guess"}
    assert (figures.by_env["calc"].calls, figures.by_env["calc"].failed) == (pytest.approx(4 / 79), 1)


async def test_an_error_that_looks_like_markup_is_printed_and_ends_no_run(monkeypatch):
    """The chat templates of some models have such tokens, and an error of a user's reward may quote them."""
    from openrlhf_tir.cluster.jobs import evaluate

    async def fail(*_):
        return EvaluationFailed("mine.py:4: KeyError: '[/INST]'", 2, 2)

    console = Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(evaluate, "attempt", fail)
    assert await evaluate.try_to_evaluate(SimpleNamespace(console=console), Config(), [], "the base model") is None
    assert "'[/INST]'" in console.file.getvalue()
