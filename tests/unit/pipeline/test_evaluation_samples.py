"""Evaluation: what came back of the held-out problems -> figures, or how many samples are missing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from openrlhf_tir.cluster.jobs.evaluate import evaluate, groups_at_once, summarise
from openrlhf_tir.cluster.jobs.main import _as_json
from openrlhf_tir.cluster.jobs.measured import HeldOut, evaluation_row, scores
from openrlhf_tir.config import Config
from openrlhf_tir.errors import EngineError, EvaluationFailed
from openrlhf_tir.rollout.group_runner import EvalMode
from openrlhf_tir.types import GroupKey, Task
from tests.pipeline.fakes import group_of

pytestmark = pytest.mark.slow  # importing ray
TASKS = [Task(f"p{i}", "0") for i in range(100)]


def meta(i: int):
    """Two samples, one right."""
    return group_of(GroupKey(-1, i), 0)[0]


def test_a_few_lost_samples_are_counted_and_left_out():
    """100 problems of 2 samples: one group never came back, two samples of 200 are lost."""
    figures = summarise(TASKS, [meta(i) for i in range(99)] + ["engine_gone"], 2)
    assert (figures.failed, figures.samples, figures.accuracy) == (2, 198, 0.5)


def test_the_parts_of_the_reward_are_means_over_the_samples_that_have_them():
    """One group of two samples, one of a single one."""
    one = replace(meta(0), stats={"calls": 1.0, "seen": 0.5})
    two = replace(meta(1), correct=[True], used_code=[True], stats={"calls": 1.0, "seen": 1.0, "late": 1.0})
    assert summarise(TASKS[:2], [one, two], 2).parts == {"reward/seen": pytest.approx(2 / 3), "reward/late": 1.0}


def test_a_group_without_a_valid_sample_says_nothing_of_its_kind_or_its_form():
    """It has no figures of its own: they were NaN, and with them the mean of all."""
    tasks = [Task(f"p{i}", "0", meta={"kind": "rare" if i == 0 else "common"}) for i in range(100)]
    ended = [replace(meta(i), stats={"calls": 1.0, "format_ok": 0.25}) for i in range(100)]
    ended[0] = replace(
        ended[0], correct=[], used_code=[], rewards=[], response_tokens=[], stats={}, failures={"timeout": 2}
    )
    figures = summarise(tasks, ended, 2)
    assert (figures.format_ok, figures.accuracy, figures.calls, figures.failed) == (0.25, 0.5, 1.0, 2)
    assert figures.by_kind == {"common": (0.5, 0.5)}
    silent = summarise(TASKS, [replace(meta(i), stats={"calls": 1.0}) for i in range(100)], 2)
    assert json.loads(json.dumps(_as_json(silent), allow_nan=False))["format_ok"] is None, "a reward without that part"


def test_where_no_call_can_be_made_there_is_no_code_ratio():
    """Two silent groups of which one is of an environment that allows calls: of that one 0, of both 0, of the other
    none."""
    tasks = [Task("p", "0", "sums", {"kind": "sums"}), Task("p", "0", "game", {"kind": "game"})]
    sums, game = (replace(meta(i), env=task.env, used_code=[False, False]) for i, task in enumerate(tasks))
    none = summarise(tasks[:1], [sums], 2, {"sums"})
    assert none.code_ratio is None and none.by_kind == {"sums": (0.5, None)}
    assert scores(none, none).model_dump() == {"accuracy": 0.5, "greedy_accuracy": 0.5}
    assert summarise(tasks[:1], [sums], 2).code_ratio == 0.0
    both = summarise(tasks, [sums, game], 2, {"sums"})
    assert both.code_ratio == 0.0 and {env: f.code_ratio for env, f in both.by_env.items()} == {
        "sums": None,
        "game": 0.0,
    }
    assert "code_ratio" not in scores(both, both).model_dump()["envs"]["sums"]
    rows = [evaluation_row(figures) for figures in (none, both)]
    assert not [name for name in rows[0] if name.endswith("code_ratio")], "metrics.jsonl"
    assert [name for name in rows[1] if name.endswith("code_ratio")] == ["eval/code_ratio", "eval/game/code_ratio"]
    told = replace(sums, used_code=[True, False])
    assert summarise(tasks[:1], [told], 2, {"sums"}).code_ratio == 0.5, "an agent told of it"


def sampled(i: int, right: int, of: int, tokens: int = 10):
    valid = [True] * right + [False] * (of - right)
    return replace(meta(i), correct=valid, used_code=[False] * of, response_tokens=[tokens] * of)


def test_pass_at_k_and_pass_hat_k_are_means_over_problems_with_samples_enough():
    """Of 4 samples 4, 1 and 0 are right: pass@2 = (1 + 3/6 + 0) / 3, pass^2 = (1 + 0 + 0) / 3. A fourth problem lost
    one of its samples: nothing of k = 4 is said of it, and of k = 2 with its 2 right of 3 1 and 1/3."""
    ended = [sampled(0, 4, 4), sampled(1, 1, 4), sampled(2, 0, 4)]
    figures = summarise(TASKS[:3], ended, 4)
    assert figures.pass_at == pytest.approx({2: 0.5, 4: 2 / 3})
    assert figures.pass_hat == pytest.approx({2: 1 / 3, 4: 1 / 3})
    lost = replace(sampled(3, 2, 3), failures={"timeout": 1})
    figures = summarise(TASKS[:4], [*ended, lost], 4)
    assert figures.pass_at == pytest.approx({2: 2.5 / 4, 4: 2 / 3})
    assert figures.pass_hat == pytest.approx({2: (1 + 1 / 3) / 4, 4: 1 / 3})
    assert summarise(TASKS[:1], [lost], 4).pass_at == {2: 1.0}, "no problem has four"
    assert summarise(TASKS[:1], [sampled(0, 1, 1)], 1).pass_at == {}, "one sample: that is the accuracy"


def test_the_row_before_and_after_a_run_has_all_that_one_during_it_has_and_the_greedy_share():
    tasks = [Task("p", "0", meta={"kind": kind}) for kind in ("easy", "hard")]
    found = summarise(tasks, [replace(sampled(0, 2, 2, 30), stats={"calls": 1.0, "seen": 0.5}), sampled(1, 0, 2)], 2)
    greedy = summarise(tasks, [sampled(0, 1, 1), sampled(1, 1, 1)], 1)
    during = evaluation_row(found)
    assert (during["eval/pass_at_2"], during["eval/pass_hat_2"], during["eval/response_tokens"]) == (0.5, 0.5, 20.0)
    assert (during["eval/kind/easy/accuracy"], during["eval/kind/hard/accuracy"]) == (1.0, 0.0)
    assert during["eval/reward/seen"] == 0.5
    around = HeldOut.of(found, greedy)
    shares = {f"eval/{of}greedy_accuracy": 1.0 for of in ("", "kind/all/", "kind/easy/", "kind/hard/")}
    assert around.row == during | shares and around.scores == scores(found, greedy)
    assert HeldOut.model_validate_json(around.model_dump_json()) == around, "base.json"
    one = evaluation_row(summarise(tasks[:1], [sampled(0, 1, 2)], 2))
    assert not [name for name in one if name.startswith("eval/kind/")]


def test_more_than_two_percent_are_refused_with_how_many_and_why():
    ended = [meta(i) for i in range(96)] + [replace(meta(96), failures={"timeout": 2})] + ["engine_gone"] * 3
    with pytest.raises(EvaluationFailed, match=r"\(engine_gone 6, timeout 2\)") as e:
        summarise(TASKS, ended, 2)
    assert (e.value.failed, e.value.samples) == (8, 200)


def test_a_single_sample_that_is_lost_is_no_figure():
    with pytest.raises(EvaluationFailed):
        summarise(TASKS[:1], ["engine_gone"], 1)


async def test_a_group_that_fails_does_not_end_the_others():
    class Pool:
        async def run_group(self, key, task, mode):
            if key.prompt == 7:
                raise EngineError("refused")
            return meta(key.prompt), None

    figures = await evaluate(Pool(), TASKS, EvalMode(2, 0.0))
    assert (figures.failed, figures.samples) == (2, 198)


@pytest.mark.parametrize(
    ("engines", "slots", "samples", "groups"), [(1, 64, 8, 32), (4, 512, 8, 256), (4, 512, 1, 2048)]
)
def test_an_evaluation_fills_all_engines_and_runs_at_least_32_groups(engines, slots, samples, groups):
    cfg = Config.model_validate({"vllm": {"num_engines": engines, "max_num_seqs": slots}})
    assert groups_at_once(cfg, samples) == groups
