"""BFCL's multi-turn suites: the publisher's files side by side -> prompts that tell the functions, tasks."""

from __future__ import annotations

import json
import re

import pytest

from openrlhf_tir.config import Data
from openrlhf_tir.data.bfcl.functions import DIRECTORY, FILES
from openrlhf_tir.data.bfcl.prompt import NOTATION, TASK
from openrlhf_tir.data.prompts import load_prompts, problems
from openrlhf_tir.errors import ConfigError, DataError
from openrlhf_tir.evaluation.suites import SUITES, find, rows_of
from tests.unit.evaluation.test_plan import planned
from tests.unit.evaluation.test_suites import jsonl

NAME = "bfcl_multi_turn_miss_func"
SORT = {
    "name": "sort",
    "description": "Sort a file.",
    "parameters": {"type": "dict", "properties": {"file_name": {"type": "string"}}},
    "response": {},
}
ADD = {
    "name": "add",
    "description": "",
    "parameters": {
        "type": "dict",
        "properties": {"a": {"type": "float"}, "type": {"type": "tuple"}},
        "required": ["a"],
    },
}
ROW = {
    "id": "multi_turn_miss_func_0",
    "question": [[{"role": "user", "content": "Sort a.txt."}], []],
    "initial_config": {"GorillaFileSystem": {"root": {}}},
    "involved_classes": ["GorillaFileSystem", "MathAPI"],
    "missed_function": {"1": ["sort"]},
}
GOLD = [[], ["sort('a.txt')"]]
SUITE = {"env": {"name": "bfcl", "options": {"user": True}, "protocol": "tool"}, "data": {"apply_chat_template": True}}


def files(folder, row=ROW):
    for name, file in FILES.items():
        jsonl(folder / DIRECTORY / file, *({"GorillaFileSystem": [SORT], "MathAPI": [ADD]}.get(name, [])))
    jsonl(folder / "possible_answer" / "BFCL_v4_multi_turn_miss_func.json", {"id": row["id"], "ground_truth": GOLD})
    return jsonl(folder / "BFCL_v4_multi_turn_miss_func.json", row)


def test_a_row_asks_its_first_turn_and_tells_the_functions_but_for_the_missing(tmp_path):
    files(tmp_path)
    (row,) = rows_of(find(NAME, tmp_path))
    system, user = row["prompt"]
    add = {"type": "object", "properties": {"a": {"type": "number"}, "type": {"type": "array"}}, "required": ["a"]}
    told = json.dumps({"name": "add", "description": "", "parameters": add})
    assert (system["content"], user) == (
        "\n".join([TASK, "# Functions", told, NOTATION["tool"]]),
        {"role": "user", "content": "Sort a.txt."},
    )
    meta = row["meta"]
    assert json.loads(row["label"]) == GOLD and (meta["turns"], meta["missed_function"], meta["kind"]) == (
        [[]],
        {"1": ["sort"]},
        "multi_turn_miss_func",
    )
    assert (
        meta["functions_told"]
        and meta["initial_config"] == ROW["initial_config"]
        and meta["involved_classes"] == ROW["involved_classes"]
    )


def test_for_a_chat_in_the_models_own_format_the_template_is_told_the_rows_functions(tmp_path):
    files(tmp_path)
    (row,) = rows_of(find(NAME, tmp_path), "messages")
    assert row["prompt"][0]["content"] == TASK and [t["function"]["name"] for t in row["meta"]["chat_tools"]] == ["add"]

    class Tokenizer:
        chat_template = "..."

        def __call__(self, texts, **how):
            return {"input_ids": [[1] for _ in texts]}

        def apply_chat_template(self, messages, *, tools=None, **how):
            return " ".join([*(t["function"]["name"] for t in tools or []), *(m["content"] for m in messages)])

    plain = {"prompt": "Hm?", "label": "1"}
    data = Data(
        prompt_dataset=str(jsonl(tmp_path / "d.jsonl", row, plain)),
        apply_chat_template=True,
        input_key="prompt",
        label_key="label",
    )
    first, second = (task.prompt for task in load_prompts(data, Tokenizer()).tasks)
    assert first == f"add {TASK} Sort a.txt." and second == "Hm?"


def test_tools_of_a_row_that_are_none_name_the_line(tmp_path):
    path = jsonl(tmp_path / "d.jsonl", {"prompt": "Hm?", "label": "1", "meta": {"chat_tools": "add"}})
    with pytest.raises(DataError, match=r"line 1: meta.chat_tools = 'add'"):
        load_prompts(Data(prompt_dataset=str(path)))


def test_the_rows_are_training_data_too_and_keep_what_is_missing(tmp_path):
    path = jsonl(tmp_path / "d.jsonl", {**ROW, "ground_truth": GOLD})
    (p,) = problems(Data(prompt_dataset=str(path), row_schema="bfcl_multi_turn"))
    assert (
        p.meta["missed_function"] == {"1": ["sort"]}
        and "functions_told" not in p.meta
        and p.input == ROW["question"][0]
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"involved_classes": ["WebSearchAPI"]}, "'WebSearchAPI'"),
        ({"missed_function": ["sort"]}, "missed_function"),
        ({"id": "another"}, "'ground_truth'"),
    ],
)
def test_a_row_of_another_form_is_refused(tmp_path, change, said):
    files(tmp_path)
    path = jsonl(tmp_path / "BFCL_v4_multi_turn_miss_func.json", ROW | change)
    with pytest.raises(DataError) as e:
        list(rows_of(find(NAME, tmp_path)))
    assert said in str(e.value) and f"{path} line 1" in str(e.value)


def test_a_missing_directory_of_functions_says_what_to_copy(tmp_path):
    files(tmp_path)
    (tmp_path / DIRECTORY / "math_api.json").unlink()
    with pytest.raises(DataError, match=rf"math_api\.json .* {DIRECTORY} .*bfcl-eval"):
        list(rows_of(find(NAME, tmp_path)))


def test_a_plan_is_graded_by_the_environment(tmp_path):
    files(tmp_path / "sets")
    p = planned(tmp_path, NAME, reward={"name": "artist", "options": {"functions": True}}, **SUITE)
    assert p.cfg.reward.name == "env" and any(re.search(r"1 .* 200\b", fact) for fact in p.sets[0].facts)
    assert SUITES[NAME].rows == 200


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"name": "functions"}, "'bfcl'.*'functions'"),
        ({"options": {}}, "env.options.user"),
        (
            {"protocol": "zerotir", "options": {"user": True}},
            "tool, hermes, messages.*'zerotir'",
        ),
    ],
)
def test_what_the_set_cannot_be_played_with_is_refused(tmp_path, env, said):
    files(tmp_path / "sets")
    with pytest.raises(ConfigError, match=said):
        planned(tmp_path, NAME, **{**SUITE, "env": SUITE["env"] | env})
