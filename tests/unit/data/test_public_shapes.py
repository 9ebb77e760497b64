"""The shapes of public data sets: what is asked and what counts as right, or a refusal that says what to do."""

from __future__ import annotations

import json

import pytest

from openrlhf_tir.cli.checks.data import check_data
from openrlhf_tir.config import Data
from openrlhf_tir.config.settings import load
from openrlhf_tir.data import load_prompts
from openrlhf_tir.errors import ConfigError, DataError
from tests.unit.data.test_data_prompts import CharTokenizer, jsonl

USER = [{"role": "user", "content": "1+1?"}]
VERL = {"data_source": "math_dapo", "ability": "MATH", "extra_info": {"index": "x"}}


def first(tmp_path, row, **data):
    """(what is asked, the label) of a data set with this one row; a chat is asked by its last user message."""
    task = load_prompts(Data(prompt_dataset=jsonl(tmp_path / "d.jsonl", [row]), input_template="{}", **data))[0]
    return task.prompt, task.label


@pytest.mark.parametrize(
    ("row", "label"),
    [
        ({"problem": "1+1?", "answer": "2", "solution": "It is \\boxed{3}"}, "2"),
        ({"Problem": "1+1?", "Answer": 2, "Solution": "long", "ID": "2024-I-1"}, "2"),
        ({"problem": "1+1?", "solution": "We add. So $\\boxed{2}$.", "level": "Level 1"}, "2"),
        ({"question": "1+1?", "answer": "One and one.\n#### 2"}, "2"),
        ({"question": "1+1?", "final_answer": "2", "difficulty": 1.0, "r1_solution_1": "x"}, "2"),
        ({"problem": "1+1?", "expected_answer": "2", "generated_solution": "x"}, "2"),
        ({"messages": USER, "ground_truth": "2", "dataset": "math"}, "2"),
        ({"messages": [*USER, {"role": "assistant", "content": "2"}], "ground_truth": "2"}, "2"),
        ({"prompt": "1+1?", "verification_info": '{"ground_truth": "2"}', "task_type": "math"}, "2"),
        ({"question": "1+1?", "answer": ["2", "two"]}, '{"target": ["2", "two"]}'),
        ({"question": "1+1?", "answer": {"value": "2", "aliases": ["two", "2"]}}, '{"target": ["2", "two"]}'),
        ({"query": "1+1?", "response": "Added.\nThe answer is $\\boxed{2}$ since one and one make two here."}, "2"),
        ({"question": "1+1? A. 1 B. 2", "choices": ["1", "2"], "answer": "B"}, "B"),
        ({**VERL, "prompt": "1+1?", "solution": "2", "reward_model": {"ground_truth": "2", "style": "rule"}}, "2"),
        (
            {**VERL, "prompt": "1+1?", "solution": "2", "source_prompt": USER, "reward_model": {"ground_truth": "2"}},
            "2",
        ),
        ({**VERL, "data_source": "train-math-x", "prompt": USER, "reward_model": {"ground_truth": '["2"]'}}, "2"),
        ({**VERL, "data_source": "x", "prompt": USER, "reward_model": '{"ground_truth": "2", "style": "rule"}'}, "2"),
        ({"prompt": json.dumps(USER), "label": "2"}, "2"),
        ({"prompt": str(USER), "label": "2"}, "2"),
        ({"prompt": json.dumps({"messages": USER}), "label": "2"}, "2"),
        ({"prompt": [{"from": "human", "value": "1+1?"}], "label": "2"}, "2"),
        ({"prompt": [{"role": "user", "content": [{"type": "text", "text": "1+1?"}]}], "label": "2"}, "2"),
    ],
)
def test_a_public_row_is_read_for_what_it_asks_and_what_is_right(tmp_path, row, label):
    asked, said = first(tmp_path, row)
    assert asked.startswith("1+1?") and said == label


@pytest.mark.parametrize("text", ["[1, 2, 3]", '{"a": 1}', '["role", "from"]', "[role: user]", '[{"from": 3}]'])
def test_a_problem_that_looks_like_a_chat_stays_a_problem(tmp_path, text):
    assert first(tmp_path, {"prompt": text, "label": "2"}) == (text, "2")


@pytest.mark.parametrize(
    "row",
    [
        {"problem": "Prove it.", "answer": "proof", "solution": "x"},
        {"problem": "1+1?", "solution": "It is two because one and one are two, as everybody knows who can count."},
        {"prompt": "Sort.", "verification_info": '{"test_cases": []}'},
        {"question": "1+1?", "options": ["1", "2"], "answer": "B"},
        {"prompt": [{"role": "user", "content": [{"type": "image", "image": "x"}]}], "label": "2"},
        {"messages": [{"role": "assistant", "content": "2"}], "ground_truth": "2"},
        {**VERL, "prompt": USER, "reward_model": {"ground_truth": None}},
    ],
)
def test_a_row_that_cannot_be_judged_is_a_bad_row(tmp_path, row):
    with pytest.raises(DataError):
        first(tmp_path, row)
    source = jsonl(tmp_path / "d.jsonl", [{"problem": "1+1?", "answer": "2"}, row] if "problem" in row else [row] * 2)
    if "problem" in row:
        prompts = load_prompts(Data(prompt_dataset=source, on_bad_row="skip"))
        assert len(prompts) == 1 and prompts.dropped == {"bad_row": 1}


def test_a_column_that_is_named_is_meant_and_none_is_guessed_in_its_place(tmp_path):
    row = {"problem": "1+1?", "answer": "2", "grade": "3"}
    assert first(tmp_path, row, label_key="grade") == ("1+1?", "3")
    for wrong in ({"label_key": "mark"}, {"input_key": "text"}):
        with pytest.raises(ConfigError) as e:
            first(tmp_path, row, **wrong)
        assert f"data.{next(iter(wrong))}" in str(e.value)


def test_a_chat_as_json_text_is_rendered_by_the_chat_template(tmp_path):
    source = jsonl(
        tmp_path / "d.jsonl", [{"prompt": json.dumps([{"role": "system", "content": "s"}, *USER]), "label": 2}]
    )
    data = Data(prompt_dataset=source, apply_chat_template=True, max_len=1000)
    assert load_prompts(data, CharTokenizer())[0].prompt == "system:s|user:1+1?|assistant:"


PREFERENCES = {"context_messages": USER, "dataset": "x", "id": "1"}
"""A row of OpenRLHF's prompt-collection, which has no answers."""


@pytest.mark.parametrize("reward", ["env", "remote", "json:dumps"])
def test_rows_need_no_label_where_no_reward_compares_with_one(tmp_path, reward):
    source = jsonl(tmp_path / "d.jsonl", [PREFERENCES, {**PREFERENCES, "id": "2"}])
    given = {
        "data.prompt_dataset": source,
        "reward.name": reward,
        "reward.remote_url": "http://127.0.0.1:1/score" if reward == "remote" else None,
        "data.input_template": "{}",
        "run_dir": str(tmp_path),
    }
    facts = check_data(load(None, {**given, "rollout.batch_size": 2}), training=True)
    assert facts[0].startswith("2 problems")
    prompts = load_prompts(Data(prompt_dataset=source, input_template="{}"), unlabelled=["python_tir"])
    assert [(task.prompt, task.label) for task in prompts.tasks] == [("1+1?", "")] * 2


def test_rows_need_a_label_where_a_reward_compares_with_it(tmp_path):
    source = jsonl(tmp_path / "d.jsonl", [{"prompt": "1+1?"}])
    with pytest.raises(ConfigError) as e:
        check_data(load(None, {"data.prompt_dataset": source, "run_dir": str(tmp_path)}), training=True)
    assert "data.label_key" in str(e.value)


def test_of_several_environments_only_those_whose_reward_compares_need_labels(tmp_path):
    rows = [{"prompt": "play", "env": "game"}, {"prompt": "1+1?", "env": "calc"}]
    source = jsonl(tmp_path / "d.jsonl", rows)
    with pytest.raises(DataError) as e:
        load_prompts(Data(prompt_dataset=source), templates_of={"game": None, "calc": None}, unlabelled=["game"])
    assert "line 2" in str(e.value)


def test_a_row_that_needs_no_label_has_one_where_a_column_holds_one(tmp_path):
    """Which is all columns that a labelled run looks at; what has no answer has an empty label."""
    rows = [
        {"problem": "1+1?", "solution": "So \\boxed{2}"},
        {"problem": "1+2?", "solution": "It is three, which everybody can see who has ever counted from one to three."},
        {"problem": "1+3?", "solution": "4"},
    ]
    source = jsonl(tmp_path / "d.jsonl", rows)
    prompts = load_prompts(Data(prompt_dataset=source), unlabelled=["python_tir"])
    assert [task.label for task in prompts.tasks] == ["2", "", "4"]
    named = jsonl(tmp_path / "n.jsonl", [{"text": "1+1?", "solution": "So \\boxed{2}"}])
    (task,) = load_prompts(Data(prompt_dataset=named, input_key="text"), unlabelled=["python_tir"]).tasks
    assert (task.prompt, task.label) == ("1+1?", "2")


def test_the_column_of_a_solution_that_is_named_is_not_left_empty(tmp_path):
    source = jsonl(tmp_path / "d.jsonl", [{"problem": "1+2?", "solution": "Three, as one sees. " * 9}])
    with pytest.raises(DataError):
        load_prompts(Data(prompt_dataset=source, label_key="solution"), unlabelled=["python_tir"])


@pytest.mark.parametrize("answered", [{"solution": "So \\boxed{2}"}, {"answer": "2"}])
def test_beside_an_environment_without_labels_the_answers_of_the_other_are_read(tmp_path, answered):
    rows = [{"prompt": "play", "env": "game"}, {"prompt": "1+1?", "env": "calc", **answered}]
    for order in (rows, rows[::-1]):
        source = jsonl(tmp_path / "d.jsonl", order)
        prompts = load_prompts(
            Data(prompt_dataset=source), templates_of={"game": None, "calc": None}, unlabelled=["game"]
        )
        assert {task.env: task.label for task in prompts.tasks} == {"game": "", "calc": "2"}


@pytest.mark.parametrize(("labels", "facts"), [(["2", "3"], 1), (["2", ""], 2), (["", ""], 2)])
def test_rows_whose_label_a_reward_of_ones_own_is_told_empty_are_counted(tmp_path, labels, facts):
    rows = [{"prompt": f"{n}?", **({"answer": label} if label else {})} for n, label in enumerate(labels)]
    given = {"data.prompt_dataset": jsonl(tmp_path / "d.jsonl", rows), "data.input_template": "{}"}
    given |= {"reward.name": "json:dumps", "rollout.batch_size": 2, "run_dir": str(tmp_path), "train.max_steps": 1}
    told = check_data(load(None, given), training=True)
    said = [fact for fact in told if "task.extra" not in fact]
    assert len(said) == facts
    if facts > 1:
        assert said[1].startswith(f"{labels.count('')} ") and "data.label_key" in said[1]


@pytest.mark.parametrize(("chat", "facts"), [(False, 2), (True, 1)])
def test_rows_that_a_chat_template_rendered_are_counted_where_none_is_applied(tmp_path, chat, facts):
    tokens = [{"content": "<|im_start|>", "special": True}, {"content": "<think>", "special": False}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    rows = [{"prompt": text, "label": "2"} for text in ("<|im_start|>user 1+1?", "<think> 1+1?", "2+0?")]
    given = {"data.prompt_dataset": jsonl(tmp_path / "d.jsonl", rows), "actor.model_name_or_path": str(tmp_path)}
    given |= {"data.apply_chat_template": chat, "data.input_template": None if chat else "{}"}
    given |= {"rollout.batch_size": 3, "run_dir": str(tmp_path), "train.max_steps": 1}
    said = check_data(load(None, given), training=True)
    assert len(said) == facts
    assert chat or (said[1].startswith("1 ") and "--data.apply_chat_template" in said[1])


def test_rows_that_are_said_to_be_rendered_are_not_counted(tmp_path):
    tokens = [{"content": "<|im_start|>", "special": True}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    rows = [{"prompt": "<|im_start|>user 1+1?", "label": "2"}]
    given = {"data.prompt_dataset": jsonl(tmp_path / "d.jsonl", rows), "actor.model_name_or_path": str(tmp_path)}
    given |= {"data.rendered": True, "rollout.batch_size": 1, "run_dir": str(tmp_path), "train.max_steps": 1}
    assert len(check_data(load(None, given), training=True)) == 1


def test_the_tests_of_a_program_are_no_answer_of_mathematics(tmp_path):
    label = json.dumps({"inputs": ["1"], "outputs": ["2"]})
    row = {**VERL, "data_source": "codeforces", "prompt": USER, "reward_model": {"ground_truth": label}}
    given = {"data.prompt_dataset": jsonl(tmp_path / "d.jsonl", [row]), "data.input_template": "{}"}
    with pytest.raises(DataError):
        check_data(load(None, {**given, "rollout.batch_size": 1, "run_dir": str(tmp_path)}), training=True)
