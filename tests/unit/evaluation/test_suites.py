"""Suites: the user's files in the publishers' forms -> rows as ours; what is missing or of another form is told with
where to get it."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openrlhf_tir.config import Reward
from openrlhf_tir.errors import ConfigError, DataError
from openrlhf_tir.evaluation.forms import maths
from openrlhf_tir.evaluation.suites import SUITES, SuiteFile, convert, find, reward_for, rows_of, size_fact
from openrlhf_tir.rewards import call_now, load
from openrlhf_tir.rewards.context import RewardContext
from openrlhf_tir.rewards.searchr1 import golds_of
from openrlhf_tir.types import Task
from tests.unit.evaluation.test_store import sample


def jsonl(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def read(tmp_path, name, *rows):
    return list(rows_of(SuiteFile(SUITES[name], jsonl(tmp_path / f"{name}.jsonl", *rows))))


def test_the_named_sets_are_there_with_their_published_sizes():
    sizes = {
        "aime24": 30,
        "aime25": 30,
        "amc23": 40,
        "math500": 500,
        "olympiad": 675,
        "hmmt25": 30,
        "nq": 3610,
        "hotpotqa": 7405,
        "bamboogle": 125,
        "hmmt24": 30,
        "cmimc25": 40,
        "olymmath_en_easy": 100,
        "olymmath_en_hard": 100,
        "olymmath_zh_hard": 100,
        "triviaqa": 11313,
        "popqa": 14267,
        "2wiki": 12576,
        "musique": 2417,
    }
    assert {name: SUITES[name].rows for name in sizes} == sizes
    assert [SUITES[f"apibank_l{i}"].rows for i in (1, 2, 3)] == [399, 67, 131] and SUITES["bfcl_simple"].rows == 400


@pytest.mark.parametrize("name", sorted(n for n in SUITES if not SUITES[n].made))
def test_a_missing_file_says_where_to_get_the_set_and_in_which_form(name, tmp_path):
    with pytest.raises(ConfigError) as e:
        find(name, tmp_path)
    suite = SUITES[name]
    assert all(
        part in str(e.value)
        for part in (
            suite.source,
            suite.shape,
            *([str(suite.rows)] if suite.rows else []),
            f"--suite {name}=FILE",
            f"{name}.parquet",
        )
    )
    with pytest.raises(ConfigError, match=rf"--suite {name}=.*x\.jsonl"):
        find(f"{name}={tmp_path / 'x.jsonl'}", tmp_path)


def test_a_set_is_found_in_the_directory_by_its_name_or_its_publishers(tmp_path):
    jsonl(tmp_path / "aime24.jsonl", {})
    jsonl(tmp_path / "BFCL_v3_simple.json", {})
    assert (
        find("aime24", tmp_path).path.name == "aime24.jsonl"
        and find("bfcl_simple", tmp_path).path.name == "BFCL_v3_simple.json"
    )
    assert find(f"math500={tmp_path / 'aime24.jsonl'}", "nowhere").suite.name == "math500"


def test_an_unknown_suite_is_told_with_those_that_exist(tmp_path):
    with pytest.raises(ConfigError, match=r"'aime23'\. .*: .*aime24"):
        find("aime23", tmp_path)


@pytest.mark.parametrize(
    ("row", "prompt", "label", "meta"),
    [
        ({"Problem": "P", "Answer": 204}, "P", "204", {}),
        ({"problem": "P", "solution": "So \\boxed{7}.", "id": 1}, "P", "7", {}),
        ({"question": "P", "answer": 27.0}, "P", "27", {}),
        (
            {"problem": "P", "answer": "\\frac12", "level": 3, "subject": "Algebra"},
            "P",
            "\\frac12",
            {"kind": "level 3"},
        ),
        ({"question": "P", "final_answer": ["$2$"], "subfield": "Geometry"}, "P", "2", {"kind": "Geometry"}),
        ({"question": "P", "final_answer": ["1", "2"]}, "P", "1, 2", {}),
        (
            {"problem": "P", "answer": "$a$ or $b$", "problem_type": ["Algebra", "Combinatorics"]},
            "P",
            "$a$ or $b$",
            {"kind": "Algebra, Combinatorics"},
        ),
        (
            {"prompt": [{"role": "user", "content": "P"}], "reward_model": {"ground_truth": "5"}},
            [{"role": "user", "content": "P"}],
            "5",
            {},
        ),
    ],
)
def test_a_problem_of_any_publisher_is_read(tmp_path, row, prompt, label, meta):
    assert read(tmp_path, "aime24", row) == [{"prompt": prompt, "label": label, "meta": meta}]


@pytest.mark.parametrize(
    ("name", "row", "said"),
    [
        ("aime24", {"problem": "P"}, "answer, final"),
        ("aime24", {"answer": "5"}, ": answer"),
        ("aime24", {"problem": "P", "answer": {"x": 1}}, "{'x': 1} (dict)"),
        ("aime24", {"problem": "P", "solution": "no box"}, "'answer'"),
        ("nq", {"question": "Q", "golden_answers": 3}, "3 (int)"),
        ("apibank_l1", {"prompt": "Q", "label": {"x": 1}}, "{'x': 1}"),
        ("apibank_l1", {"label": {"name": "f", "parameters": {}}}, "line 1 "),
        (
            "bfcl_simple",
            {"id": "a", "question": [[{"role": "user", "content": "Q"}]], "function": [{"name": "f"}]},
            "ground_truth",
        ),
        ("bfcl_simple", {"id": "a", "question": "Q", "function": [{"name": "f"}]}, "'Q' (str)"),
        ("bfcl_simple", {"id": "a", "question": [[]]}, "None (NoneType)"),
        (
            "bfcl_simple",
            {"id": ["a"], "question": [[{"role": "user", "content": "Q"}]], "function": [{"name": "f"}]},
            "ground_truth",
        ),
        (
            "bfcl_simple",
            {
                "id": "a",
                "question": [[{"role": "user", "content": "Q"}]] * 2,
                "function": [{"name": "f"}],
                "ground_truth": [{}],
            },
            " 2 ",
        ),
        ("aime24", {"problem": [1, 2], "answer": 1}, "prompt[0] = 1 "),
        (
            "apibank_l1",
            {"messages": ["Q"], "label": {"name": "f", "parameters": {}}},
            "prompt[0] = 'Q' ",
        ),
        ("aime24", {"problem": "half an emoji \ud83d", "answer": 1}, "\\ud83d"),
    ],
)
def test_a_row_of_another_form_names_file_line_and_what_was_wanted(tmp_path, name, row, said):
    with pytest.raises(DataError) as e:
        read(tmp_path, name, row)
    assert said in str(e.value) and f"{name}.jsonl line 1" in str(e.value) and SUITES[name].title in str(e.value)


def test_questions_of_flashrag_and_plain_ones_have_the_same_label(tmp_path):
    wanted = {"prompt": "Who wrote it?", "label": '{"target": ["Ann", "A. Lee"]}', "meta": {}}
    assert read(tmp_path, "nq", {"id": "0", "question": "Who wrote it", "golden_answers": ["Ann", "A. Lee"]}) == [
        wanted
    ]
    assert (
        read(tmp_path, "bamboogle", {"Question": "Who wrote it?", "Answer": "Ann"})[0]["label"] == '{"target": ["Ann"]}'
    )


WEATHER = {
    "name": "weather",
    "parameters": {"type": "dict", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def graded(row, name, text) -> bool:
    context = RewardContext(Reward(name=name), options={})
    return call_now(load(name), sample(0, text, 0.0), Task("", row["label"]), context).correct


def test_a_question_for_which_any_call_is_right_needs_no_answers(tmp_path):
    question = {"id": "live_relevance_0", "question": [[{"role": "user", "content": "Rain?"}]], "function": [WEATHER]}
    (row,) = read(tmp_path, "bfcl_live_relevance", question)
    assert graded(row, "bfcl", "[weather(city='Bonn')]")
    assert not graded(row, "bfcl", "Which town?")


def test_bfcl_questions_are_joined_with_their_answers_and_graded(tmp_path):
    question = {"id": "simple_0", "question": [[{"role": "user", "content": "Rain in Bonn?"}]], "function": [WEATHER]}
    path = jsonl(tmp_path / "BFCL_v3_simple.json", question)
    jsonl(
        tmp_path / "possible_answer" / path.name, {"id": "simple_0", "ground_truth": [{"weather": {"city": ["Bonn"]}}]}
    )
    (row,) = rows_of(find("bfcl_simple", tmp_path))
    assert [m["role"] for m in row["prompt"]] == ["system", "user"] and json.dumps([WEATHER]) in row["prompt"][0][
        "content"
    ]
    assert row["meta"] == {"kind": "simple"}
    assert (
        graded(row, "bfcl", "[weather(city='Bonn')]")
        and not graded(row, "bfcl", "[weather(city='Rome')]")
        and not graded(row, "bfcl", "It rains.")
    )


def test_an_answer_that_pandas_has_as_nan_is_none(tmp_path):
    pq.write_table(pa.table({"problem": ["P", "Q"], "answer": [204.0, float("nan")]}), tmp_path / "aime24.parquet")
    with pytest.raises(DataError, match=r"row 2: .*nan \(float\)"):
        list(rows_of(find("aime24", tmp_path)))


@pytest.mark.parametrize("part", ["", " ", True, None, float("nan")])
def test_a_part_of_an_answer_that_states_nothing_is_refused_like_such_an_answer(part):
    with pytest.raises(DataError, match=rf"^here: .* {part!r} \({type(part).__name__}\)"):
        maths("here", {"question": "P", "final_answer": ["2", part]})
    assert maths("here", {"question": "P", "final_answer": ["$2$", 3.0]})["label"] == "2, 3"


def test_a_question_with_two_answers_of_one_id_is_refused(tmp_path):
    question = {"id": "simple_0", "question": [[{"role": "user", "content": "Rain in Bonn?"}]], "function": [WEATHER]}
    path = jsonl(tmp_path / "BFCL_v3_simple.json", question)
    bonn, rome = ({"id": "simple_0", "ground_truth": [{"weather": {"city": [city]}}]} for city in ("Bonn", "Rome"))
    answers = jsonl(tmp_path / "possible_answer" / path.name, bonn, bonn)
    assert len(list(rows_of(find("bfcl_simple", tmp_path)))) == 1
    jsonl(answers, bonn, rome)
    with pytest.raises(DataError, match=r"line 2 .*'simple_0' .*ground_truth"):
        list(rows_of(find("bfcl_simple", tmp_path)))


def test_where_no_function_fits_no_call_is_right(tmp_path):
    (row,) = read(
        tmp_path,
        "bfcl_irrelevance",
        {"id": "i", "question": [[{"role": "user", "content": "Hm?"}]], "function": [WEATHER]},
    )
    assert graded(row, "bfcl", "None of them fits.") and not graded(row, "bfcl", "[weather(city='Bonn')]")


def test_an_api_bank_row_is_graded_by_its_soft_match(tmp_path):
    gold = {"name": "Add", "parameters": {"x": 1}}
    (row,) = read(
        tmp_path, "apibank_l1", {"instruction": "Use the tools.", "input": "Add 1", "expected_output": json.dumps(gold)}
    )
    assert row["prompt"] == "Use the tools.\nAdd 1"
    assert graded(row, "apibank", f"<tool_call>\n{json.dumps(gold)}\n</tool_call>")


def test_a_set_is_converted_whole_and_another_size_is_said(tmp_path):
    found = SuiteFile(
        SUITES["aime24"], jsonl(tmp_path / "a.jsonl", *({"problem": f"P{i}", "answer": i} for i in range(300)))
    )
    rows = convert(found, tmp_path / "out" / "problems.jsonl")
    assert rows == 300 == len((tmp_path / "out" / "problems.jsonl").read_text().splitlines())
    assert re.search(r"300 .* 30\b", size_fact(found.suite, rows) or "") and size_fact(found.suite, 30) is None


def test_an_empty_file_is_no_set(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(DataError, match=r"a\.jsonl .*AIME 2024.*HuggingFaceH4/aime_2024"):
        convert(SuiteFile(SUITES["aime24"], tmp_path / "a.jsonl"), tmp_path / "p.jsonl")


@pytest.mark.parametrize(
    ("name", "used", "grades"),
    [
        ("aime24", Reward(name="torl"), "torl"),
        ("aime24", Reward(name="toolrl"), "math"),
        ("aime24", Reward(name="otc"), "otc"),
        ("nq", Reward(name="math"), "searchr1"),
        ("nq", Reward(name="otc"), "searchr1"),
        ("nq", Reward(name="otc", options={"base": "searchr1"}), "otc"),
        ("bfcl_simple", Reward(name="mine.py:grade"), "mine.py:grade"),
    ],
)
def test_the_recipes_reward_grades_where_it_can(name, used, grades):
    assert reward_for(SUITES[name], used) == grades


def test_api_banks_processed_rows_are_read_as_toolrl_publishes_them(tmp_path):
    call = {"name": "Q", "parameters": {"n": 3}}
    row = {"system": "Tools.", "user": "Ask.", "answer": [call], "other": {"file": "x"}}
    (read_row,) = read(tmp_path, "apibank_l1", row)
    assert read_row["prompt"] == [{"role": "system", "content": "Tools."}, {"role": "user", "content": "Ask."}]
    assert json.loads(read_row["label"]) == [call]
    (tmp_path / "level-2-api_processed.json").write_text(json.dumps([row | {"answer": call}]))
    found = find("apibank_l2", tmp_path)
    assert [json.loads(r["label"]) for r in rows_of(found)] == [call]


@pytest.mark.parametrize(
    ("name", "row", "golds"),
    [
        ("triviaqa", {"answer": {"value": "Oslo", "aliases": ["Oslo", "Christiania"]}}, ["Oslo", "Christiania"]),
        ("popqa", {"possible_answers": '["politician", "pol"]', "obj": "politician"}, ["politician", "pol"]),
        ("2wiki", {"answer": "Paris", "type": "comparison"}, ["Paris"]),
        ("musique", {"answer": "Paris", "answer_aliases": ["Paname"]}, ["Paris", "Paname"]),
        ("triviaqa", {"golden_answers": ["Oslo"]}, ["Oslo"]),
    ],
)
def test_questions_in_their_publishers_own_columns_are_read(tmp_path, name, row, golds):
    (read_row,) = read(tmp_path, name, {"question": "Which?", **row})
    assert golds_of(read_row["label"]) == golds


@pytest.mark.parametrize("answer", [None, 3, {"aliases": ["x"]}, {}])
def test_a_question_without_a_text_as_its_answer_is_refused(tmp_path, answer):
    with pytest.raises(DataError, match=r"triviaqa\.jsonl"):
        read(tmp_path, "triviaqa", {"question": "Which?", "answer": answer})
