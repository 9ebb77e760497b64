"""Rows in the methods' own schemas: what becomes of the samples in tests/data, by hand; what a malformed row says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from openrlhf_tir.config import Config, Data
from openrlhf_tir.data import load_prompts
from openrlhf_tir.data.schemas import DAPO_HEAD, DAPO_TAIL
from openrlhf_tir.data.templates import TEMPLATES
from openrlhf_tir.errors import ConfigError, DataError
from openrlhf_tir.rewards import load
from tests.data.make_samples import CALL, TARGET, rows
from tests.unit.data.test_data_prompts import CharTokenizer, jsonl
from tests.unit.rewards.reward_fakes import in_run, says

SAMPLES = Path(__file__).parents[2] / "data"


def tasks(name, **data):
    tokenizer = CharTokenizer() if data.get("apply_chat_template") else None
    return load_prompts(Data(prompt_dataset=str(SAMPLES / name), max_len=100_000, **data), tokenizer).tasks


@pytest.mark.parametrize("name", ["zerotir.jsonl", "orz.json", "dapo.parquet", "torl.parquet", "verl.parquet"])
def test_every_schema_of_maths_gives_the_same_problems_without_being_told_which_it_is(name):
    found = [(t.prompt, t.label) for t in tasks(name, input_template="{}")]
    assert found == [("What is 17 + 25?", "42"), ("What is 6 * 7 - 2?", "40")]


def test_torls_rows_fill_torls_prompt_with_the_user_message_alone():
    assert tasks("torl.parquet", input_template="torl")[0].prompt == TEMPLATES["torl"].replace(
        "{input}", "What is 17 + 25?"
    )


@pytest.mark.parametrize("name", ["searchr1.jsonl", "flashrag.jsonl"])
def test_a_search_question_is_put_into_search_r1s_prompt_and_any_of_its_answers_is_right(name):
    task = tasks(name, input_template="searchr1")[0]
    assert task.prompt == TEMPLATES["searchr1"].replace("{input}", "who wrote hamlet?")
    assert load("searchr1")(says("<answer>shakespeare</answer>"), task, in_run(name="searchr1")).reward == 1.0


def test_toolrls_label_is_its_target_text_and_scores_four():
    task = tasks("toolrl.jsonl", apply_chat_template=True)[0]
    assert task.label == TARGET
    assert load("toolrl")(says(TARGET), task, in_run(name="toolrl")).reward == 4.0
    assert task.prompt.startswith(
        "system:You may use tools.|user:**Dialogue Records History**\n<user> Is it cold in Oslo? </user>\n|assistant:"
    )


@pytest.mark.parametrize(
    "variant", ["v0", "llama", "v1_lexico", "v2_wo_reason", "v3_partial_reason", "v4_partial_reason_funcname"]
)
def test_a_raw_row_of_tool_n1_becomes_its_prompt_and_every_variant_scores_its_own_answer(variant):
    first, second = tasks("tooln1.jsonl", apply_chat_template=True)
    assert '<tools>\n{"type": "function", "function": {"name": "weather"' in first.prompt
    assert first.prompt.startswith("system:You are an expert in composing functions.\n\n# Tool")
    assert first.prompt.endswith("|user:Is it cold in Oslo?|assistant:")
    assert json.loads(first.label) == CALL
    right = says(f"<think>t</think> <tool_call>{json.dumps(CALL)}</tool_call>")
    context = in_run(name="tooln1", options={"variant": variant})
    assert load("tooln1")(right, first, context).reward == {"v1_lexico": 1.2}.get(variant, 1.0)
    assert load("tooln1")(says("<think>t</think> <tool_call>[]</tool_call>"), second, context).correct


def verl_row(source, truth):
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": "q"}],
        "reward_model": {"ground_truth": truth},
    }


@pytest.mark.parametrize(
    ("source", "truth"),
    [
        ("rlla", "<think> t </think>\n<response> Hello </response>"),
        ("rlla", "<think> t </think>"),
        (
            "rlla",
            (
                '<think> t </think>\n<tool_call>\n{"name": "f", "parameters": {"q": NaN}, "more":'
                " 1}\n</tool_call>\n<response> x </response>"
            ),
        ),
        ("rlla", '<tool_call>{"name": "f", "parameters": {}}'),
        ("toolcall", "[]"),
        ("toolcall", json.dumps(json.dumps(CALL))),
        ("toolcall", '[{"name": "f", "arguments": [NaN]}]'),
    ],
)
def test_a_gold_answer_that_the_official_code_scores_is_read_as_it_is(tmp_path, source, truth):
    path = jsonl(tmp_path / "d.jsonl", [verl_row(source, truth)])
    assert [
        t.label
        for t in load_prompts(
            Data(prompt_dataset=path, apply_chat_template=True, max_len=10_000), CharTokenizer()
        ).tasks
    ] == [truth]


@pytest.mark.parametrize(
    ("source", "gold", "said"),
    [
        ("rlla", "not json", "1 .*<tool_call> .*'not json'.*JSON"),
        ("rlla", "", "1 .*<tool_call> .*''.*JSON"),
        ("rlla", "[1]", '{"name": .*"parameters": '),
        ("rlla", '{"name": "f"}', '{"name": .*"parameters": '),
        ("rlla", '{"name": 1, "parameters": {}}', '{"name": .*"parameters": '),
        ("rlla", '{"name": "f", "parameters": []}', '{"name": .*"parameters": '),
        (
            "rlla",
            '{"name": "f", "parameters": {}}\n\n{"name": "g", "parameters": {}}',
            "2 .*<tool_call> .*''.*JSON",
        ),
        ("toolcall", "not json", "'not json'.*JSON"),
        ("toolcall", '"null"', "'\"null\"'.*JSON"),
        ("toolcall", "[1]", '1 .*1, .*{"name": .*"arguments": '),
        ("toolcall", '[{"name": "f", "arguments": {}}, {"name": "f"}]', r"2 .*{'name': 'f'}"),
        ("toolcall", '[{"name": 1, "arguments": {}}]', r"1 .*{'name': 1, 'arguments': {}}"),
    ],
)
def test_gold_calls_that_the_reward_cannot_read_name_line_field_and_form(tmp_path, source, gold, said):
    truth = f"<think> t </think>\n<tool_call>\n{gold}\n</tool_call>" if source == "rlla" else gold
    path = jsonl(tmp_path / "d.jsonl", [verl_row(source, truth)])
    with pytest.raises(DataError, match=rf"{re.escape(str(path))} line 1: reward_model\.ground_truth: .*{said}"):
        load_prompts(Data(prompt_dataset=path, apply_chat_template=True), CharTokenizer())


def changed(sample, change):
    row = json.loads((SAMPLES / sample).read_text().splitlines()[0])
    change(row)
    return row


@pytest.mark.parametrize(
    ("sample", "change", "message"),
    [
        (
            "searchr1.jsonl",
            lambda r: r.update(prompt=3),
            r".*3 \(int\)",
        ),
        (
            "searchr1.jsonl",
            lambda r: r["reward_model"].update(ground_truth={"target": [7]}),
            r".*\[7\] \(list\)",
        ),
        (
            "searchr1.jsonl",
            lambda r: r["reward_model"].update(ground_truth={"target": [""]}),
            r".*\[''\] \(list\)",
        ),
        (
            "flashrag.jsonl",
            lambda r: r.update(golden_answers=["Oslo", " "]),
            r".*\['Oslo', ' '\] \(list\)",
        ),
        (
            "toolrl.jsonl",
            lambda r: r["reward_model"].update(ground_truth={}),
            r"reward_model\.ground_truth .*{} \(dict\)",
        ),
        (
            "toolrl.jsonl",
            lambda r: r["reward_model"].update(ground_truth=None),
            r"reward_model\.ground_truth .*None \(NoneType\)",
        ),
        (
            "toolrl.jsonl",
            lambda r: r["reward_model"].update(ground_truth="call it"),
            r"reward_model\.ground_truth .*'call it' \(str\)",
        ),
        ("tooln1.jsonl", lambda r: r.update(tools="[{"), "tools .*JSON"),
        ("tooln1.jsonl", lambda r: r.update(tools="[3]"), r"tools\[0\] .*3 \(int\)"),
        (
            "tooln1.jsonl",
            lambda r: r.update(answer='[{"name": "sing", "arguments": {}}]'),
            r"answer\[0\] .*'sing'",
        ),
        (
            "tooln1.jsonl",
            lambda r: r.update(conversations='[{"from": "god", "value": "x"}]'),
            r"conversations\[0\] ",
        ),
        ("flashrag.jsonl", lambda r: r.update(question=3), r"question .*3 \(int\)"),
    ],
)
def test_a_malformed_row_names_file_line_field_and_type(tmp_path, sample, change, message):
    path = jsonl(tmp_path / "d.jsonl", [changed(sample, change)])
    with pytest.raises(DataError, match=rf"{re.escape(str(path))} line 1: {message}"):
        load_prompts(Data(prompt_dataset=path, apply_chat_template=True), CharTokenizer())


def test_rows_of_another_schema_than_the_one_asked_for_say_which_field_is_missing():
    with pytest.raises(DataError, match=r"1.*'prompt'.*question, golden_answers"):
        tasks("flashrag.jsonl", row_schema="toolrl", apply_chat_template=True)
    with pytest.raises(ConfigError, match="torl"):
        tasks("torl.parquet", row_schema="trol")


def test_a_label_key_of_ones_own_reads_the_row_as_it_is():
    assert [t.label for t in tasks("verl.parquet", label_key="reward_model.ground_truth", input_template="{}")] == [
        "42",
        "40",
    ]


def test_the_samples_are_what_their_script_makes():
    for name, made in rows().items():
        path = SAMPLES / name
        if path.suffix == ".jsonl":
            assert [json.loads(line) for line in path.read_text().splitlines()] == made


AIME = {"problem": "How many?", "answer": "204"}
VERL = {"prompt": [{"role": "user", "content": "How many?"}], "reward_model": {"ground_truth": "204"}}
OF_DAPO = {**VERL, "data_source": "math_dapo"}
NAMED = {"input_key": "question", "label_key": "gold"}


@pytest.mark.parametrize(
    ("settings", "row"),
    [
        ({"row_schema": "verl"}, AIME),
        ({"row_schema": "verl"}, VERL),
        ({"row_schema": "verl"}, {"prompt": "How many?", "label": "204"}),
        (NAMED, {"question": "How many?", "gold": "204", "answer": "205"}),
        (NAMED, AIME),
        ({}, VERL),
    ],
)
def test_rows_of_an_evaluation_may_have_other_columns_than_the_training_rows(tmp_path, settings, row):
    cfg = Config(data=settings | {"input_template": "{}"}, eval={"dataset": jsonl(tmp_path / "eval.jsonl", [row])})
    (task,) = load_prompts(cfg.held_out).tasks
    assert (task.prompt, task.label) == ("How many?", "204")


def test_rows_of_an_evaluation_that_fit_the_training_rows_schema_are_read_by_it(tmp_path):
    row = {**OF_DAPO, "prompt": [{"role": "user", "content": f"{DAPO_HEAD}\n\nHow many?\n\n{DAPO_TAIL}"}]}
    cfg = Config(
        data={"row_schema": "verl", "apply_chat_template": True},
        eval={"dataset": jsonl(tmp_path / "eval.jsonl", [row])},
    )
    assert DAPO_HEAD in load_prompts(cfg.held_out, CharTokenizer()).tasks[0].prompt


def test_training_rows_of_other_columns_than_the_settings_name_are_refused(tmp_path):
    with pytest.raises(DataError):
        load_prompts(Data(prompt_dataset=jsonl(tmp_path / "d.jsonl", [AIME]), row_schema="verl"))


def test_rows_of_an_evaluation_that_nothing_fits_are_refused_by_the_training_rows_schema(tmp_path):
    cfg = Config(data={"row_schema": "verl"}, eval={"dataset": jsonl(tmp_path / "eval.jsonl", [{"x": "1"}])})
    with pytest.raises(DataError, match="prompt"):
        load_prompts(cfg.held_out)
