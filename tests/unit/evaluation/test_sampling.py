"""Sampling a set: every item on disk as it ends, what was lost is sampled again, and a broken reward ends it soon."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError, EngineError, EvaluationFailed
from openrlhf_tir.evaluation.items import ITEMS
from openrlhf_tir.evaluation.settings import Sampled
from openrlhf_tir.evaluation.store import Store
from openrlhf_tir.types import Task
from tests.pipeline.fakes import group_of
from tests.unit.rollout.protocols.chat_models import tokenizer

pytestmark = pytest.mark.slow  # importing ray
TASKS = [Task(f"p{i}", "0", row=f"row{i}") for i in range(100)]
HOW = Sampled(2, 1.0, 0.7, 4)


class Pool:
    """`lost` problems raise; `broken` ones fail by the method's own code; `asked`: what was sampled, with its mode."""

    def __init__(self, lost=(), broken=()):
        self.lost, self.broken, self.asked = set(lost), set(broken), []

    async def run_group(self, key, task, mode):
        self.asked.append((key.prompt, mode))
        await asyncio.sleep(0)
        if key.prompt in self.lost:
            raise EngineError("refused")
        meta, group = group_of(key, 0)
        if key.prompt in self.broken:
            meta = replace(meta, failures={"reward_error": 2}, why={"reward_error": "mine.py:4: KeyError"})
            for t in group.trajectories:
                t.failed, t.reward = "reward_error", None
        return meta, group

    async def fetch(self, payloads):
        return payloads


def rows(tmp_path):
    return [json.loads(line) for line in (tmp_path / ITEMS).read_text().splitlines()]


async def sampled(tmp_path, pool):
    from openrlhf_tir.cluster.jobs.evaluate_suites import sample

    store = Store(tmp_path, {}, TASKS)
    try:
        await sample(pool, store, "aime24", HOW)
    finally:
        store.close()
    return store


async def test_every_problem_has_one_row_and_evaluations_own_settings(tmp_path):
    pool = Pool()
    store = await sampled(tmp_path, pool)
    assert sorted(row["index"] for row in rows(tmp_path)) == list(range(100)) and len(store.items) == 100
    mode = pool.asked[0][1]
    assert (mode.n, mode.temperature, mode.top_p, mode.max_calls) == (2, 1.0, 0.7, 4)


async def test_the_next_run_asks_only_for_what_was_lost(tmp_path):
    await sampled(tmp_path, Pool(lost=[3, 50]))
    assert len(rows(tmp_path)) == 100
    again = Pool()
    await sampled(tmp_path, again)
    assert sorted(i for i, _ in again.asked) == [3, 50]
    assert sorted(row["index"] for row in rows(tmp_path)) == list(range(100)) and all(
        not row["failures"] for row in rows(tmp_path)
    )


async def test_more_than_two_percent_lost_is_no_figure_and_keeps_the_items(tmp_path):
    from openrlhf_tir.cluster.jobs.evaluate_suites import check_lost

    store = await sampled(tmp_path, Pool(lost=[3, 50]))
    check_lost(store.items, 2, tmp_path)  # 4 of 200
    store = await sampled(tmp_path / "more", Pool(lost=[3, 50, 60]))
    with pytest.raises(
        EvaluationFailed,
        match=r"\b6 \w+ 200 .*\(engine_error 6\)",
    ):
        check_lost(store.items, 2, tmp_path)


def own(tmp_path):
    from openrlhf_tir.evaluation.plan import plan

    (tmp_path / "own.jsonl").write_text("{}\n")
    cfg = Config(
        actor={"model_name_or_path": "m"}, eval={"dataset": str(tmp_path / "own.jsonl"), "n_samples_per_prompt": 2}
    )
    return plan(cfg, [], "sets", tmp_path / "items", None)


async def test_a_set_that_lost_too_much_has_no_figures_until_the_rest_is_sampled(tmp_path):
    from openrlhf_tir.cluster.jobs.evaluate_suites import evaluate_plan

    console = Console(file=io.StringIO())
    with pytest.raises(EvaluationFailed):
        await evaluate_plan(
            SimpleNamespace(pool=Pool(lost=[3, 50, 60]), console=console), own(tmp_path), {"own": TASKS}
        )
    assert not (tmp_path / "items/own/figures.json").exists()
    again = Pool()
    (result,) = await evaluate_plan(SimpleNamespace(pool=again, console=console), own(tmp_path), {"own": TASKS})
    assert sorted(i for i, _ in again.asked) == [3, 50, 60] and result.figures["samples"] == 200


def test_a_published_set_whose_problems_do_not_all_fit_is_refused_before_anything_starts(tmp_path, monkeypatch):
    from openrlhf_tir.cluster.jobs import evaluate_suites, inputs
    from openrlhf_tir.evaluation.plan import plan

    monkeypatch.setattr(inputs, "tokenizer_of", lambda cfg: tokenizer("qwen2_5"))
    rows = [{"problem": "1+1? " * (1 + 99 * (i == 7)), "answer": 2} for i in range(30)]
    (tmp_path / "aime24.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cfg = Config(data={"max_len": 164}, rollout={"max_new_tokens": 64})
    planned = plan(cfg, ["aime24"], tmp_path, tmp_path / "items", None)
    with pytest.raises(
        ConfigError,
        match=r"\b1 \w+ 30 .* aime24 .*\(prompt_too_long 1; .* 100 \w+\)",
    ):
        evaluate_suites.tasks_of(planned)


async def test_a_reward_that_is_broken_ends_it_soon_with_its_error(tmp_path):
    pool = Pool(broken=range(100))
    with pytest.raises(ExceptionGroup) as e:
        await sampled(tmp_path, pool)
    assert e.group_contains(
        EvaluationFailed,
        match=r"^3 .* aime24 .*: mine\.py:4: KeyError",
    )
    assert len(rows(tmp_path)) < 100


async def test_a_plan_is_evaluated_set_by_set_and_value_by_value(tmp_path):
    from openrlhf_tir.cluster.jobs.evaluate_suites import evaluate_plan
    from openrlhf_tir.evaluation.plan import plan

    (tmp_path / "own.jsonl").write_text("{}\n")
    cfg = Config(
        actor={"model_name_or_path": "m"}, eval={"dataset": str(tmp_path / "own.jsonl"), "n_samples_per_prompt": 2}
    )
    planned = plan(cfg, [], "sets", tmp_path / "items", "env.max_calls=0,4")
    pool = Pool()
    services = SimpleNamespace(pool=pool, console=Console(file=io.StringIO()))
    results = await evaluate_plan(services, planned, {"own": TASKS})
    assert [(r.setting, r.figures["avg@2"][0], r.figures["rows"], r.figures["published"]) for r in results] == [
        (0.0, 0.5, 100, None),
        (4.0, 0.5, 100, None),
    ]
    assert Counter(mode.max_calls for _, mode in pool.asked) == {0: 100, 4: 100}
    assert json.loads((tmp_path / "items/own/max_calls=4/figures.json").read_text()) == results[1].figures
    await evaluate_plan(services, planned, {"own": TASKS})
    assert len(pool.asked) == 200 and re.search(r"\b100 \w+ 100 ", services.console.file.getvalue())
