"""The plan of an evaluation: what is sampled of what, by which reward, and what is refused before anything starts."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.config.own_files import freeze
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.evaluation.plan import PlannedSet, check_whole, digest_of, plan
from openrlhf_tir.evaluation.settings import Sampled, differences, made_under, parse_sweep
from openrlhf_tir.types import Task
from tests.unit.evaluation.test_suites import WEATHER, jsonl

BASE = Sampled(4, 1.0, 0.7)
READ_OTHERWISE = {
    **{"max_samples": 3, "input_key": "question", "label_key": "gold", "input_template": "torl", "on_bad_row": "skip"},
    **{"prompt_dataset": ["a.jsonl", "b.jsonl"], "prompt_probs": [0.7, 0.3], "row_schema": "torl"},
}
"""What a recipe says of its training data, none of which a suite's own file is like."""


def aime(tmp_path, rows: int = 30):
    jsonl(tmp_path / "sets" / "aime24.jsonl", *({"problem": f"P{i}", "answer": i} for i in range(rows)))
    return tmp_path / "sets"


def planned(tmp_path, *named, sweep=None, **cfg):
    return plan(Config(**cfg), named, tmp_path / "sets", tmp_path / "items", sweep)


def test_a_sweep_varies_one_setting_in_ascending_order():
    key, settings = parse_sweep("env.max_calls=20,0,4,2", BASE)
    assert key == "env.max_calls" and [s.max_calls for s in settings] == [0, 2, 4, 20]
    assert all((s.n, s.temperature, s.top_p) == (4, 1.0, 0.7) for s in settings)
    assert [s.temperature for s in parse_sweep("eval.temperature=0,0.6,1.0", BASE)[1]] == [0.0, 0.6, 1.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("env.calls=0,2", "Unknown --sweep key 'env.calls'. Known: .*env.max_calls"),
        ("env.max_calls=0,two", "env.max_calls=0,two"),
        ("env.max_calls=4", "env.max_calls=4"),
        ("env.max_calls=-1,2", "-1 .*env.max_calls"),
        ("eval.n_samples_per_prompt=0,2", "n_samples_per_prompt"),
        ("eval.top_p=0,1", "0.0 .*top_p"),
        ("eval.temperature=nan,1", "nan .*temperature"),
        ("env.max_calls", "env.max_calls"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        parse_sweep(text, BASE)


def test_a_set_is_planned_whole_whatever_the_recipe_reads_of_its_training_data(tmp_path):
    aime(tmp_path)
    p = planned(tmp_path, "aime24", data=READ_OTHERWISE, eval={"max_calls": 2, "top_p": 0.7})
    (asked,) = p.sets
    assert (asked.rows, asked.published, asked.facts) == (30, 30, ())
    assert (asked.data.max_samples, asked.data.input_key, asked.data.row_schema, asked.data.input_template) == (
        100_000_000,
        "prompt",
        None,
        "torl",
    )
    assert (asked.data.on_bad_row, asked.data.prompt_probs, asked.data.label_key) == ("error", None, "label")
    assert len((tmp_path / "items" / "aime24" / "problems.jsonl").read_text().splitlines()) == 30
    assert (
        p.settings == [Sampled(4, 1.0, 0.7, 2)] and p.directory(asked, p.settings[0]) == tmp_path / "items" / "aime24"
    )


def test_every_value_of_a_sweep_has_a_directory_of_its_own(tmp_path):
    aime(tmp_path)
    p = planned(tmp_path, "aime24", sweep="env.max_calls=0,20")
    assert [str(p.directory(p.sets[0], s).relative_to(tmp_path)) for s in p.settings] == [
        "items/aime24/max_calls=0",
        "items/aime24/max_calls=20",
    ]


def test_a_smaller_file_is_said_and_problems_that_do_not_fit_are_refused(tmp_path):
    aime(tmp_path, 29)
    (asked,) = planned(tmp_path, "aime24").sets
    assert re.search(r"29 .* 30\b", asked.facts[0])
    check_whole(asked, [Task("p", "1")] * 29, {}, 10)
    with pytest.raises(ConfigError, match=r"2 .*29 .*aime24 .*\(prompt_too_long 2; .* 10 .*data\.max_len"):
        check_whole(asked, [Task("p", "1")] * 27, {"prompt_too_long": 2}, 10)


def test_own_rows_that_do_not_fit_are_told_and_none_at_all_is_refused(tmp_path):
    own = PlannedSet("own", Config().data, tmp_path, None, None)
    assert check_whole(own, [Task("p", "1")], {}, 10) is None
    assert re.match(
        r"2 .*own .*\(prompt_too_long 2;", check_whole(own, [Task("p", "1")], {"prompt_too_long": 2}, 10) or ""
    )
    with pytest.raises(ConfigError, match=r"\bown .*\(prompt_too_long 2; .* 10 "):
        check_whole(own, [], {"prompt_too_long": 2}, 10)


def test_a_recipe_whose_reward_does_not_grade_the_set_gets_the_sets_own_and_says_so(tmp_path):
    aime(tmp_path)
    p = planned(tmp_path, "aime24", reward={"name": "toolrl", "options": {"variant": "fine"}})
    assert (p.cfg.reward.name, p.cfg.reward.options) == ("math", {}) and "'math'" in p.sets[0].facts[0]
    assert planned(
        tmp_path, "aime24", reward={"name": "torl", "options": {"execution_penalty": 0.5}}
    ).cfg.reward.options == {"execution_penalty": 0.5}


def test_sets_of_different_graders_are_refused_together(tmp_path):
    jsonl(aime(tmp_path) / "nq.jsonl", {"question": "Q", "golden_answers": ["A"]})
    with pytest.raises(ConfigError, match=r"aime24 .*'math', nq .*'searchr1'"):
        planned(tmp_path, "aime24", "nq")


def test_functions_in_a_system_message_are_never_lost_to_a_text_template(tmp_path):
    row = {"id": "i", "question": [[{"role": "user", "content": "Hm?"}]], "function": [WEATHER]}
    jsonl(tmp_path / "sets" / "BFCL_v3_irrelevance.json", row)
    with pytest.raises(ConfigError, match=r"data\.apply_chat_template"):
        planned(tmp_path, "bfcl_irrelevance", data={"input_template": "torl"})
    assert planned(tmp_path, "bfcl_irrelevance", data={"apply_chat_template": True}).cfg.reward.name == "bfcl"


@pytest.mark.parametrize("separator", ["\u2028", "\x85"])
def test_what_some_call_the_end_of_a_line_is_a_character_of_a_problem(tmp_path, separator):
    jsonl(tmp_path / "sets" / "aime24.jsonl", *({"problem": f"P{i}{separator}?", "answer": i} for i in range(30)))
    assert planned(tmp_path, "aime24").sets[0].rows == 30


@pytest.mark.parametrize(
    ("named", "cfg", "said"),
    [
        ((), {}, "--eval.dataset"),
        (("aime24",), {"eval": {"dataset": "x.jsonl"}}, "--eval.dataset"),
        (("aime24",), {"envs": {"a": {}, "b": {}}}, "a, b"),
        (("aime24", "aime24=FILE"), {}, "--suite aime24"),
    ],
)
def test_what_cannot_be_evaluated_together_is_refused(tmp_path, named, cfg, said):
    folder = aime(tmp_path)
    (folder / "copy.jsonl").write_text((folder / "aime24.jsonl").read_text())
    named = [name.replace("FILE", str(folder / "copy.jsonl")) for name in named]
    with pytest.raises(ConfigError, match=said):
        planned(tmp_path, *named, **cfg)


@pytest.mark.parametrize("sweep", [None, "env.max_calls=0,4"])
def test_the_problems_of_items_are_never_written_over_by_those_of_another_file(tmp_path, sweep):
    aime(tmp_path)
    p = planned(tmp_path, "aime24", sweep=sweep)
    items = p.directory(p.sets[0], p.settings[0])
    kept = (tmp_path / "items" / "aime24" / "problems.jsonl").read_text()
    aime(tmp_path, 29)
    planned(tmp_path, "aime24", sweep=sweep)  # nothing was sampled yet: the file may be corrected
    aime(tmp_path)
    planned(tmp_path, "aime24", sweep=sweep)
    items.mkdir(exist_ok=True)
    (items / "items.jsonl").write_text("")
    planned(tmp_path, "aime24", sweep=sweep)
    aime(tmp_path, 29)
    with pytest.raises(ConfigError, match=r"/items/aime24 .*aime24\.jsonl .*--items"):
        planned(tmp_path, "aime24", sweep=sweep)
    assert (tmp_path / "items" / "aime24" / "problems.jsonl").read_text() == kept


def test_own_rows_are_a_set_too(tmp_path):
    (asked,) = planned(tmp_path, eval={"dataset": "mine.jsonl", "max_samples": 7}).sets
    assert (asked.name, asked.data.prompt_dataset, asked.data.max_samples, asked.published) == (
        "own",
        "mine.jsonl",
        7,
        None,
    )


def test_a_model_that_was_trained_on_is_another_model(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"123")
    cfg = Config(actor={"model_name_or_path": str(tmp_path)})
    before = made_under(cfg, BASE, "aime24", "d")
    assert json.loads(json.dumps(before)) == before and differences(before, before) == []
    weights = tmp_path / "model.safetensors"
    before_s = weights.stat().st_mtime_ns / 1e9
    # other bytes as many as before: the time tells
    for content, at_s in ((b"1234", before_s), (b"321", before_s + 60)):
        weights.write_bytes(content)
        os.utime(weights, (at_s, at_s))
        assert [d.partition(":")[0] for d in differences(made_under(cfg, BASE, "aime24", "d"), before)] == ["weights"]
    before["weights"] = made_under(cfg, BASE, "aime24", "d")["weights"]
    before["env"]["python_tir"]["template_rewrites"] = "keep"  # a setting until it was removed
    assert differences(made_under(cfg, BASE, "aime24", "d"), before) == []
    other = Config(actor={"model_name_or_path": str(tmp_path)}, env={"protocol": "torl"})
    assert any(
        re.fullmatch(r"env\.python_tir\.protocol: 'zerotir' .*'torl' .*", difference)
        for difference in differences(made_under(other, BASE, "aime24", "d"), before)
    )


MOVED_SINCE = {"server_options": {"stateful": True}, "options": {"budget_message": True}}


def test_a_setting_that_moved_is_compared_where_it_is_now():
    before = made_under(Config(), BASE, "s", "d")
    before["env"]["python_tir"] |= {"stateful": True, "budget_message": True}
    before["engine"].append(None)  # vllm.max_model_len
    assert differences(made_under(Config(env=MOVED_SINCE), BASE, "s", "d"), before) == []
    told = {d.partition(":")[0] for d in differences(made_under(Config(), BASE, "s", "d"), before)}
    assert told == {"env.python_tir.server_options.stateful", "env.python_tir.options.budget_message"}
    before["env"]["python_tir"] |= {"stateful": False, "budget_message": False}
    assert differences(made_under(Config(), BASE, "s", "d"), before) == []


def test_copies_of_a_file_are_one_file_until_it_is_edited(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("def score(): ...\nclass AgentExecutor: ...\n")
    cfg = Config(reward={"name": f"{file}:score"}, train={"agent_func_path": str(file)}, env={"name": "echo"})
    earlier, now = (made_under(freeze(cfg, tmp_path / run / "own"), BASE, "s", "d") for run in ("a", "b"))
    assert earlier != now and differences(now, earlier) == []
    file.write_text("def score(): return 1\nclass AgentExecutor: ...\n")
    edited = made_under(freeze(cfg, tmp_path / "c" / "own"), BASE, "s", "d")
    assert {d.partition(":")[0] for d in differences(edited, earlier)} == {"agent", "env.echo.reward.name"}


def test_an_option_or_argument_with_the_name_of_a_removed_setting_is_a_setting():
    now, before = (made_under(Config(), BASE, "s", "d") for _ in range(2))
    before["env"]["python_tir"]["reward"]["options"] = {"max_failed_groups": 3}
    before["engine_args"]["max_batch"] = 3
    told = {d.partition(":")[0] for d in differences(now, before)}
    assert told == {"env.python_tir.reward.options.max_failed_groups", "engine_args.max_batch"}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"env": {"options": {"budget_message": True}}}, "env.python_tir.options.budget_message"),
        ({"env": {"file": "/own/env-1f2e.py:Mine"}}, "env.python_tir.file"),
        ({"reward": {"overlong_buffer_len": 9}}, "env.python_tir.reward.overlong_buffer_len"),
        ({"reward": {"name": "remote", "remote_url": "http://judge:1"}}, "env.python_tir.reward.remote_url"),
        ({"reward": {"verify_timeout_s": 1.0}}, "env.python_tir.reward.verify_timeout_s"),
        ({"train": {"agent_func_path": "a.py:AgentExecutor"}}, "agent"),
        ({"vllm": {"engine_args": {"kv_cache_dtype": "fp8"}}}, "engine_args.kv_cache_dtype"),
        ({"vllm": {"dtype": "float16"}}, "engine"),
        ({"train": {"seed": 7}}, "seed"),
        ({"rollout": {"max_new_tokens": 9}}, "max_new_tokens"),
        ({"env": {"workers": 9, "step_timeout_s": 1.0}, "reward": {"workers": 9}}, None),
    ],
)
def test_whatever_decides_what_a_response_is_or_counts_is_a_setting_and_where_it_runs_is_none(changed, told):
    found = differences(made_under(Config(**changed), BASE, "s", "d"), made_under(Config(), BASE, "s", "d"))
    assert told in [d.partition(":")[0] for d in found] if told else found == []


def test_the_sampling_is_a_setting():
    now = made_under(Config(), replace(BASE, n=8, temperature=0.6, top_p=1.0, max_calls=3), "s", "d")
    told = {d.partition(":")[0] for d in differences(now, made_under(Config(), BASE, "s", "d"))}
    assert told == {"n", "temperature", "top_p", "max_calls", "env.python_tir.max_calls"}


def test_the_digest_is_of_the_problems_as_they_are_asked():
    one, other = Task("p", "1", row="a"), Task("q", "1", row="a")
    assert digest_of([one]) == digest_of([Task("p", "1", row="a")]) != digest_of([other])
