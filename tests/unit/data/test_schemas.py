"""Rows in the methods' own schemas: what becomes of the samples in tests/data, by hand; what a malformed row says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openrlhf_tir.config import Data
from openrlhf_tir.data import load_prompts
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


NO_TOOLRL_CALL = 'not a JSON object {"name": text, "parameters": object}'
NO_TOOLN1_CALL = 'not {"name": text, "arguments": object}'


@pytest.mark.parametrize(
    ("source", "gold", "said"),
    [
        ("rlla", "not json", f"line 1 of its <tool_call> is 'not json', {NO_TOOLRL_CALL}"),
        ("rlla", "", f"line 1 of its <tool_call> is '', {NO_TOOLRL_CALL}"),
        ("rlla", "[1]", NO_TOOLRL_CALL),
        ("rlla", '{"name": "f"}', NO_TOOLRL_CALL),
        ("rlla", '{"name": 1, "parameters": {}}', NO_TOOLRL_CALL),
        ("rlla", '{"name": "f", "parameters": []}', NO_TOOLRL_CALL),
        (
            "rlla",
            '{"name": "f", "parameters": {}}\n\n{"name": "g", "parameters": {}}',
            f"line 2 of its <tool_call> is '', {NO_TOOLRL_CALL}",
        ),
        ("toolcall", "not json", "'not json' is not a JSON list of calls"),
        ("toolcall", '"null"', "'\"null\"' is not a JSON list of calls"),
        ("toolcall", "[1]", f"call 1 is 1, {NO_TOOLN1_CALL}"),
        ("toolcall", '[{"name": "f", "arguments": {}}, {"name": "f"}]', f"call 2 is {{'name': 'f'}}, {NO_TOOLN1_CALL}"),
        ("toolcall", '[{"name": 1, "arguments": {}}]', f"call 1 is {{'name': 1, 'arguments': {{}}}}, {NO_TOOLN1_CALL}"),
    ],
)
def test_gold_calls_that_the_reward_cannot_read_name_line_field_and_form(tmp_path, source, gold, said):
    truth = f"<think> t </think>\n<tool_call>\n{gold}\n</tool_call>" if source == "rlla" else gold
    path = jsonl(tmp_path / "d.jsonl", [verl_row(source, truth)])
    with pytest.raises(DataError) as e:
        load_prompts(Data(prompt_dataset=path, apply_chat_template=True), CharTokenizer())
    assert f"{path} line 1: reward_model.ground_truth: " in str(e.value) and said in str(e.value)


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
            "line 1: prompt is 3 (int), not a list of chat messages",
        ),
        (
            "searchr1.jsonl",
            lambda r: r["reward_model"].update(ground_truth={"target": [7]}),
            "line 1: the gold answers are [7] (list), not a list of texts",
        ),
        (
            "searchr1.jsonl",
            lambda r: r["reward_model"].update(ground_truth={"target": [""]}),
            "line 1: the gold answers are [''] (list), one of them empty",
        ),
        (
            "flashrag.jsonl",
            lambda r: r.update(golden_answers=["Oslo", " "]),
            "line 1: the gold answers are ['Oslo', ' '] (list), one of them empty",
        ),
        (
            "toolrl.jsonl",
            lambda r: r["reward_model"].update(ground_truth={}),
            "line 1: reward_model.ground_truth is {} (dict), not an answer",
        ),
        (
            "toolrl.jsonl",
            lambda r: r["reward_model"].update(ground_truth=None),
            "line 1: reward_model.ground_truth is None (NoneType)",
        ),
        (
            "toolrl.jsonl",
            lambda r: r["reward_model"].update(ground_truth="call it"),
            "line 1: reward_model.ground_truth is 'call it' (str), no target text",
        ),
        ("tooln1.jsonl", lambda r: r.update(tools="[{"), "line 1: tools is no JSON"),
        ("tooln1.jsonl", lambda r: r.update(tools="[3]"), "line 1: tools[0] is 3 (int), no function with a name"),
        (
            "tooln1.jsonl",
            lambda r: r.update(answer='[{"name": "sing", "arguments": {}}]'),
            "line 1: answer[0] calls 'sing', which is none of its tools",
        ),
        (
            "tooln1.jsonl",
            lambda r: r.update(conversations='[{"from": "god", "value": "x"}]'),
            "line 1: conversations[0] is",
        ),
        ("flashrag.jsonl", lambda r: r.update(question=3), "line 1: question is 3 (int), not text"),
    ],
)
def test_a_malformed_row_names_file_line_field_and_type(tmp_path, sample, change, message):
    path = jsonl(tmp_path / "d.jsonl", [changed(sample, change)])
    with pytest.raises(DataError) as e:
        load_prompts(Data(prompt_dataset=path, apply_chat_template=True), CharTokenizer())
    assert f"{path} {message}" in str(e.value)


def test_rows_of_another_schema_than_the_one_asked_for_say_which_field_is_missing():
    with pytest.raises(
        DataError, match=r"line 1 has no field 'prompt', a list of chat messages\. It has: id, question, golden_answers"
    ):
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
