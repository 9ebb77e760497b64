"""Every column of a row reaches rewards, environments and prompts, or the checks before a run say which does not."""

from __future__ import annotations

import datetime
import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openrlhf_tir.cli.checks.data import check_data
from openrlhf_tir.config import Data
from openrlhf_tir.config.settings import load
from openrlhf_tir.data import load_prompts
from openrlhf_tir.data.extra_columns import MAX_CHARS, NAN_AS_NULL, extra_of, sentences_of
from openrlhf_tir.data.identity import columns_digest
from openrlhf_tir.errors import ConfigError, DataError
from tests.unit.data.test_data_prompts import CharTokenizer, jsonl

TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    PLAIN | NUMBER,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
ODD = st.one_of(
    st.binary(),
    st.just({"bytes": b"\x89PNG", "path": None}),
    st.just(float("inf")),
    st.just(2**70),
    st.just("\ud800"),
    st.just({1: "a number as a key"}),
    st.just([b"nested"]),
    st.dates(),
)


def task_of(tmp_path, row, **data):
    return load_prompts(Data(prompt_dataset=jsonl(tmp_path / "d.jsonl", [row]), **data))[0]


@given(
    good=st.dictionaries(st.text("abc_é", min_size=1, max_size=4), JSON, max_size=4),
    odd=st.dictionaries(st.text("xyz", min_size=1, max_size=3), ODD, max_size=3),
)
@settings(max_examples=30, deadline=None)
def test_a_column_travels_unchanged_or_is_named_with_a_reason(good, odd):
    extra = extra_of({**good, **odd, "prompt": "p"}, {"prompt", "env"}, {})
    assert extra.columns == good and extra.left_out.keys() == odd.keys()
    assert json.loads(json.dumps(extra.columns)) == good
    assert all(extra.left_out.values())


@given(row=st.dictionaries(st.sampled_from(["level", "extra_info", "gold", "a b", "é"]), JSON, max_size=5))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_a_file_holds_is_what_a_reward_gets(tmp_path, row):
    task = task_of(tmp_path, {"prompt": "1+1?", "label": "2", "env": "calc", **row})
    assert task.extra == {"label": "2", **row}


def test_columns_of_another_schema_travel_as_the_file_has_them(tmp_path):
    row = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "1+1?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"index": 7, "tools_kwargs": {"calc": {"create_kwargs": {"ground_truth": "2"}}}},
        "agent_name": "tool_agent",
    }
    task = task_of(tmp_path, row, input_template="{}")
    assert task.label == "2" and task.extra == {name: value for name, value in row.items() if name != "prompt"}


def test_nan_is_null_and_said_since_json_has_no_word_for_it():
    extra = extra_of({"score": math.nan, "n": 1}, (), {})
    assert extra.columns == {"score": None, "n": 1} and extra.left_out == {"score": NAN_AS_NULL}


def test_what_the_schema_put_into_meta_is_not_sent_twice():
    assert extra_of({"repo": "a/b", "level": 3, "meta": {}, "datasource": "x"}, (), {"repo": "a/b"}).columns == {
        "level": 3
    }


def test_columns_that_no_server_would_take_are_left_out_and_said():
    extra = extra_of({"small": "s", "large": "x" * (MAX_CHARS + 1), "after": 1}, (), {})
    assert extra.columns == {"small": "s", "after": 1} and [*extra.left_out] == ["large"]


def test_the_check_before_a_run_lists_the_columns_and_says_what_does_not_travel(tmp_path):
    picture = {"bytes": b"\x89PNG", "path": "a.png"}
    rows = [
        {"prompt": f"{i}+1?", "label": str(i + 1), "level": i, "image": picture, "day": datetime.date(2026, 1, 1)}
        for i in range(3)
    ]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    facts = check_data(
        load(None, {"run_dir": str(tmp_path / "r"), "data.prompt_dataset": str(path), "rollout.batch_size": 2}),
        training=True,
    )
    (travels,) = [fact for fact in facts if "task.extra" in fact]
    assert travels.endswith(": level")
    of_column = {name: [fact for fact in facts if f"'{name}'" in fact] for name in rows[0]}
    assert {name: len(told) for name, told in of_column.items() if told} == {"image": 1, "day": 1}
    assert all(" 3 " in told for column in of_column.values() for told in column), "rows"


def test_a_sentence_for_each_column_and_reason():
    assert len(sentences_of({"a": {"bytes": 2, "dates": 1}, "b": {"bytes": 3}})) == 3


def test_a_template_may_name_columns_of_the_row(tmp_path):
    row = {"prompt": "1+1?", "label": "2", "context": "We add.", "facts": {"n": 2}}
    assert task_of(tmp_path, row, input_template="{context} {facts} Q: {}").prompt == 'We add. {"n": 2} Q: 1+1?'


def test_a_row_without_a_column_that_the_template_names_is_a_bad_row(tmp_path):
    with pytest.raises(DataError, match="'context'"):
        task_of(tmp_path, {"prompt": "1+1?", "label": "2", "context": None}, input_template="{context} {}")
    with pytest.raises(ConfigError, match=r"data\.input_template"):
        task_of(tmp_path, {"prompt": "1+1?", "label": "2"}, input_template="{context!r} {}")


def test_rows_that_differ_in_a_column_are_one_problem_with_columns_of_their_own(tmp_path):
    rows = [{"prompt": f"{i % 2}+1?", "label": str(i % 2 + 1), "index": i // 3} for i in range(6)]
    prompts = load_prompts(Data(prompt_dataset=jsonl(tmp_path / "d.jsonl", rows)))
    assert len(prompts.tasks.rows) == 2 and [task.extra["index"] for task in prompts.tasks] == [0, 0, 0, 1, 1, 1]
    assert [task.extra["index"] for task in prompts.tasks[2:5]] == [0, 1, 1] and prompts[5].extra["index"] == 1


def test_rows_whose_prompts_are_made_of_a_column_are_different_problems(tmp_path):
    rows = [{"prompt": "1+1?", "label": "2", "level": level} for level in (1, 2, 1)]
    data = Data(prompt_dataset=jsonl(tmp_path / "d.jsonl", rows), input_template="{level}: {}")
    prompts = load_prompts(data)
    assert len(prompts.tasks.rows) == 2 and [task.prompt for task in prompts.tasks] == ["1: 1+1?", "2: 1+1?", "1: 1+1?"]


def test_a_column_that_changed_since_a_checkpoint_changes_its_digest(tmp_path):
    def digest(*indexes):
        path = jsonl(tmp_path / "d.jsonl", [{"prompt": "1+1?", "label": "2", "index": i} for i in indexes])
        return columns_digest(load_prompts(Data(prompt_dataset=path)).tasks)

    assert digest(1, 2) == digest(1, 2) and len({digest(1, 2), digest(2, 1), digest(1, 1), digest(1, 3)}) == 4


class ChatTokenizer(CharTokenizer):
    """Renders what it was told, so that a test can read it."""

    chat_template = "{{ messages }}"

    def apply_chat_template(self, messages, **told):
        told = {name: value for name, value in told.items() if name not in ("tokenize", "add_generation_prompt")}
        return f"{messages[-1]['content']} {json.dumps(told, sort_keys=True)}"


def test_a_row_of_trl_tells_the_chat_template_its_tools_and_options(tmp_path):
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    row = {
        "prompt": [{"role": "user", "content": "1+1?"}],
        "tools": [tool],
        "chat_template_kwargs": {"thinking": False},
    }
    data = Data(prompt_dataset=jsonl(tmp_path / "d.jsonl", [row]), apply_chat_template=True)
    task = load_prompts(data, ChatTokenizer(), unlabelled=["python_tir"])[0]
    told = json.loads(task.prompt.partition(" ")[2])
    assert told == {"tools": [tool], "thinking": False} and task.chat.tools == (tool,) and not task.chat.of_text
