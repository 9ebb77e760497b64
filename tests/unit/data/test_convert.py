"""Conversion: there and back is the same problem; what becomes of xLAM's, Hammer's and ToolACE's rows, by hand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from openrlhf_tir.config import Data
from openrlhf_tir.data.bad_rows import BadRows, refuse
from openrlhf_tir.data.json_rows import read_json
from openrlhf_tir.data.prepare.augment import augmented
from openrlhf_tir.data.prepare.convert import Augment, converted
from openrlhf_tir.data.prepare.files import write_rows
from openrlhf_tir.data.prepare.function_calls import NO_CALL, NOT_OFFERED, UNREADABLE
from openrlhf_tir.data.prompts import problems
from openrlhf_tir.errors import ConfigError, DataError
from openrlhf_tir.rewards import load
from openrlhf_tir.types import Task
from tests.data.make_samples import CALL, TOOLACE, rows
from tests.unit.rewards.reward_fakes import in_run, says

SAMPLES = Path(__file__).parents[2] / "data"
MATHS = [("What is 17 + 25?", "42"), ("What is 6 * 7 - 2?", "40")]


def read(path, **data):
    return [(p.input, p.label) for p in problems(Data(prompt_dataset=str(path), **data))]


def convert(source, to, out, left_out=None, augment=None, **data):
    counts = Counter() if left_out is None else left_out
    write_rows(out, converted(Data(prompt_dataset=str(source), **data), to, refuse, counts, augment))
    return out


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
@pytest.mark.parametrize("to", ["jsonl", "zerotir", "dapo", "searchr1", "verl", "torl"])
def test_a_problem_survives_every_schema_and_every_kind_of_file(tmp_path, to, suffix):
    made = convert(SAMPLES / "orz.json", to, tmp_path / f"made{suffix}")
    back = convert(made, "jsonl", tmp_path / "back.jsonl")
    lines = [json.loads(line) for line in back.read_text().splitlines()]
    inputs = [line["prompt"] if isinstance(line["prompt"], str) else line["prompt"][-1]["content"] for line in lines]
    labels = [json.loads(line["label"])["target"][0] if to == "searchr1" else line["label"] for line in lines]
    assert list(zip(inputs, labels, strict=True)) == MATHS


def test_orz_pairs_survive_a_json_file(tmp_path):
    made = convert(SAMPLES / "torl.parquet", "orz", tmp_path / "orz.json")
    assert json.loads(made.read_text()) == rows()["orz.json"] and read(made) == MATHS


@pytest.mark.parametrize(
    "sample",
    ["toolrl.jsonl", "swegym.jsonl", "bfcl_multi_turn.jsonl", "tooln1.jsonl", "searchr1.jsonl", "zerotir.jsonl"],
)
def test_our_jsonl_keeps_everything_that_a_run_reads(tmp_path, sample):
    def whole(path):
        return [(p.input, p.label, p.env, p.meta) for p in problems(Data(prompt_dataset=str(path)))]

    assert whole(convert(SAMPLES / sample, "jsonl", tmp_path / "ours.jsonl")) == whole(SAMPLES / sample)


def test_rows_that_name_no_environment_get_one_and_others_keep_theirs(tmp_path):
    rows = [{"prompt": "a", "label": "1"}, {"prompt": "b", "label": "2", "env": "search"}]
    (tmp_path / "d.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    made = converted(Data(prompt_dataset=str(tmp_path / "d.jsonl")), "jsonl", refuse, Counter(), env="maths")
    assert [row["env"] for row in made] == ["maths", "search"]


def test_a_dialogue_does_not_fit_into_a_schema_of_problems(tmp_path):
    data = tmp_path / "d.jsonl"
    data.write_text(
        json.dumps({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "label": "1"})
    )
    with pytest.raises(DataError, match=r"d\.jsonl .* 2 "):
        convert(data, "orz", tmp_path / "o.json")
    assert not (tmp_path / "o.json").exists()
    with pytest.raises(DataError, match=r"orz\.json .*1"):
        convert(SAMPLES / "orz.json", "toolrl", tmp_path / "o.jsonl")
    with pytest.raises(ConfigError, match=r"--to 'trol'.*dapo, jsonl"):
        convert(SAMPLES / "orz.json", "trol", tmp_path / "o.jsonl")


def test_xlam_becomes_tool_n1s_rows_and_a_call_that_is_not_offered_goes(tmp_path):
    left_out = Counter()
    made = convert(SAMPLES / "xlam.jsonl", "tooln1", tmp_path / "n1.parquet", left_out, row_schema="xlam")
    assert left_out == {NOT_OFFERED: 1}
    ((given, label),) = read(made, row_schema="tooln1")
    assert [m["role"] for m in given] == ["system", "user"] and json.loads(label) == CALL
    assert (
        '{"type": "function", "function": {"name": "weather"' in given[0]["content"]
        and given[1]["content"] == "Is it cold in Oslo?"
    )
    right = says(f"<think>t</think> <tool_call>{json.dumps(CALL)}</tool_call>")
    assert load("tooln1")(right, Task("", label), in_run(name="tooln1")).reward == 1.0


def test_hammers_row_without_a_fitting_function_has_no_calls_as_its_answer(tmp_path):
    labels = [
        json.loads(label)
        for _, label in read(convert(SAMPLES / "hammer.jsonl", "jsonl", tmp_path / "h.jsonl", row_schema="hammer"))
    ]
    assert labels == [[{"name": "x3_qp", "arguments": {"city": "Oslo"}}], []]


def test_a_toolace_dialogue_is_cut_at_every_call_with_what_came_before_as_history(tmp_path):
    left_out = Counter()
    made = convert(SAMPLES / "toolace.json", "tooln1", tmp_path / "n1.jsonl", left_out, row_schema="toolace")
    (first, calls), (second, last) = read(made, row_schema="tooln1")
    cities = [{"city": "Oslo"}, {"city": "Rome, Italy", "units": ["C"], "exact": True}]
    assert json.loads(calls) == [{"name": "Weather Now", "arguments": a} for a in cities]
    assert [m["role"] for m in first] == ["system", "user"]
    assert [m["role"] for m in second] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert json.loads(second[2]["content"]) == json.loads(calls) and json.loads(last) == [
        {"name": "Weather Now", "arguments": {"city": "Bergen"}}
    ]
    assert left_out == {NO_CALL: 1}
    row = next(read_json(made))[1]
    assert (row["data_source"], row["ability"], row["extra_info"]["prompt_type"]) == ("toolcall", "toolcall", "qwen")
    assert {"tools", "conversations", "answer", "raw_system"} <= set(row)


def test_a_toolace_call_that_cannot_be_read_is_left_out_and_stays_in_the_history(tmp_path):
    said = [
        ("user", "a"),
        ("assistant", "[Weather Now(city=Oslo)]"),
        ("user", "b"),
        ("assistant", '[Weather Now(city="Oslo")]'),
        ("assistant", "[Nope(x=1)]"),
    ]
    data = tmp_path / "d.json"
    data.write_text(
        json.dumps([{"system": TOOLACE, "conversations": [{"from": who, "value": text} for who, text in said]}])
    )
    left_out = Counter()
    ((given, _),) = read(convert(data, "jsonl", tmp_path / "o.jsonl", left_out, row_schema="toolace"))
    assert [m["content"] for m in given[1:]] == ["a", "[Weather Now(city=Oslo)]", "b"]
    assert left_out == {UNREADABLE: 1, NOT_OFFERED: 1}


@pytest.mark.parametrize(
    ("schema", "row", "said"),
    [
        ("xlam", {"query": "a", "tools": "[]"}, "'answers'.*JSON"),
        ("xlam", {"query": "", "tools": "[]", "answers": "[]"}, "query "),
        ("toolace", {"system": "no tools", "conversations": []}, "JSON"),
        (
            "toolace",
            {"system": TOOLACE, "conversations": [{"from": "god", "value": "x"}]},
            r"conversations\[0\] .*\(dict\)",
        ),
        ("toolace", {"system": TOOLACE, "conversations": "x"}, r"conversations .*'x' \(str\)"),
    ],
)
def test_a_malformed_source_row_names_line_field_and_type_and_may_be_skipped(tmp_path, schema, row, said):
    data = tmp_path / "d.json"
    data.write_text(json.dumps([row, *rows()[{"xlam": "xlam.jsonl", "toolace": "toolace.json"}[schema]]]))
    with pytest.raises(DataError, match=rf"d\.json item 1.*{said}"):
        convert(data, "jsonl", tmp_path / "o.jsonl", row_schema=schema)
    bad = BadRows("skip")
    assert list(
        converted(Data(prompt_dataset=str(data), row_schema=schema, on_bad_row="skip"), "jsonl", bad, Counter())
    )
    assert bad.count == 1


def test_what_toolrl_or_tool_n1_cannot_hold_is_refused_with_line_and_reason(tmp_path):
    data = tmp_path / "d.jsonl"
    for to, label, said in [
        ("toolrl", "42", "'42' .*ToolRL's"),
        ("toolrl", json.dumps(CALL), "ToolRL's"),
        ("tooln1", "42", "'42' .*Tool-N1's"),
        ("tooln1", "<think> t </think>", "Tool-N1's"),
    ]:
        data.write_text(json.dumps({"prompt": [{"role": "user", "content": "a"}], "label": label}))
        with pytest.raises(DataError, match=rf"d\.jsonl line 1: .*{said}"):
            convert(data, to, tmp_path / "o.jsonl")
    assert not (tmp_path / "o.jsonl").exists()


@pytest.mark.parametrize("to", ["toolrl", "tooln1"])
def test_a_step_with_tools_survives_its_methods_own_rows(tmp_path, to):
    source = SAMPLES / f"{to}.jsonl"
    made = convert(source, to, tmp_path / "made.jsonl")
    assert read(made, row_schema=to) == read(source)


@pytest.mark.parametrize("to", ["torl", "dapo", "orz", "zerotir"])
def test_a_label_that_is_no_single_answer_is_refused_by_schemas_of_maths(tmp_path, to):
    for sample, said in [
        ("searchr1.jsonl", "Search-R1's"),
        ("hammer.jsonl", "Tool-N1's"),
        ("toolrl.jsonl", "ToolRL's"),
        ("swegym.jsonl", "SWE-Gym's"),
    ]:
        with pytest.raises(DataError, match=rf"{sample} line 1: .* {said}"):
            convert(
                SAMPLES / sample, to, tmp_path / "o.jsonl", row_schema="hammer" if sample.startswith("hammer") else None
            )
    data = tmp_path / "d.jsonl"
    for label in ('{"a": 1}', json.dumps(CALL), "<think> t </think>"):
        data.write_text(json.dumps({"prompt": "a", "label": label}))
        with pytest.raises(DataError, match=r"d\.jsonl line 1: "):
            convert(data, to, tmp_path / "o.jsonl")
    data.write_text(json.dumps({"prompt": "a", "label": "[1, 2]"}))
    assert convert(data, to, tmp_path / "o.jsonl").exists()


def test_masked_names_are_the_same_in_tools_history_and_answer(tmp_path):
    made = convert(
        SAMPLES / "toolace.json",
        "tooln1",
        tmp_path / "m.jsonl",
        augment=Augment(mask_names=1.0, seed=3),
        row_schema="toolace",
    )
    for _, row in read_json(made):
        (tool,) = json.loads(row["tools"])
        assert tool["name"].startswith("func_") and {c["name"] for c in json.loads(row["answer"])} == {tool["name"]}
        earlier = [t["value"] for t in json.loads(row["conversations"]) if t["from"] == "function_call"]
        assert all(call["name"] == tool["name"] for calls in earlier for call in calls)
    again = convert(
        SAMPLES / "toolace.json",
        "tooln1",
        tmp_path / "again.jsonl",
        augment=Augment(mask_names=1.0, seed=3),
        row_schema="toolace",
    )
    assert again.read_text() == made.read_text()


def test_an_irrelevant_row_has_tools_of_another_row_and_no_calls():
    def raw(name):
        return {
            "tools": json.dumps([{"name": name}]),
            "conversations": json.dumps([{"from": "human", "value": name}]),
            "answer": json.dumps([{"name": name, "arguments": {}}]),
        }

    made = list(augmented([raw("a"), raw("b")], mask_names=0.0, irrelevant=1.0, seed=0))
    assert [
        (json.loads(r["conversations"])[0]["value"], json.loads(r["tools"])[0]["name"], json.loads(r["answer"]) == [])
        for r in made
    ] == [("a", "a", False), ("b", "b", False), ("b", "a", True)]
