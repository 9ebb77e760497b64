"""BFCL's rows as a task: split by function, true calls that the checker takes, a binary reward on hand-made rows."""

from __future__ import annotations

import json

import numpy as np
import pytest

from miniatures import function_calls
from miniatures.function_calls import HELD_OUT_OF, Row, data_row, signature, true_calls
from miniatures.function_calls_reward import binary
from miniatures.rows import split_of
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.rewards.context import RewardContext
from openrlhf_tir.types import Segment, Task, Trajectory


def function(name: str, required: tuple[str, ...] = ("city",), **types: str):
    properties = {parameter: {"type": kind, "description": "-"} for parameter, kind in types.items()}
    return {
        "name": name,
        "description": "Forecast.",
        "parameters": {"type": "dict", "properties": properties, "required": list(required)},
    }


WEATHER = function("weather", city="string", days="integer", unit="string")
ANSWER = {"weather": {"city": ["Oslo", "Oslo, Norway"], "days": [3], "unit": ["celsius", ""]}}
ROW = Row("simple", "simple", "How is the weather in Oslo for 3 days?", (WEATHER,), (ANSWER,))
TWICE = Row("parallel", "parallel", "Oslo and Rome?", (WEATHER,), (ANSWER, {"weather": {"city": ["Rome"]}}))
NOTHING = Row("irrelevance", "simple", "Who are you?", (WEATHER,), ())


def names(split: str, number: int) -> list[str]:
    """Return the first names f0, f1, ... that are of the split."""
    return [name for name in (f"f{i}" for i in range(200)) if split_of(name, HELD_OUT_OF) == split][:number]


def test_a_function_is_shown_as_the_call_that_it_takes_and_what_its_parameters_mean():
    call = '{"name": "weather", "arguments": {"city": string, "days": integer?, "unit": string?}}'
    assert signature(WEATHER) == f"{call}  # Forecast.\n#   city: -\n#   days: -\n#   unit: -"
    described = function("f", city="string")
    described["parameters"]["properties"]["city"] = {"type": "string", "enum": ["Oslo"]}
    assert signature(described).endswith('\n#   city:  One of ["Oslo"].')
    assert signature(WEATHER) in data_row(ROW)["prompt"][1]["content"]


def test_a_row_is_tested_if_all_functions_that_it_calls_are_and_trained_if_none_that_it_offers_is():
    (trained, other), (tested,) = names("train", 2), names("test", 1)

    def split(called: str, *offered: str) -> str | None:
        functions = tuple(function(name, city="string") for name in offered)
        return Row("multiple", "multiple", "?", functions, ({called: {"city": ["Oslo"]}},)).split

    assert split(trained, trained, other) == "train"
    assert split(tested, tested, trained) == "test"
    assert split(trained, trained, tested) is None


def test_the_true_calls_take_the_first_value_and_leave_out_what_may_be_left_out():
    assert true_calls(ROW) == [{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}]


def test_a_required_parameter_is_given_even_where_the_answers_would_let_it_be_left_out():
    row = Row("simple", "simple", "?", (function("f", ("city",), city="string"),), ({"f": {"city": ["Oslo", ""]}},))
    assert true_calls(row) == [{"name": "f", "arguments": {"city": "Oslo"}}]


def score(text: str, row: Row = ROW, **options):
    one = [np.zeros(1, dtype) for dtype in (np.int32, np.float32, np.int32)]
    trajectory = Trajectory(0, np.zeros(0, np.int32), [Segment("model", *one, text)])
    result = binary(trajectory, Task("", data_row(row)["label"]), RewardContext(options=options))
    assert result.reward == float(result.correct) == result.parts["correct"]
    return result


def called(*calls: dict) -> str:
    return f"<tool_call>{json.dumps(list(calls))}</tool_call>"


OSLO = {"name": "weather", "arguments": {"city": "oslo, norway", "days": 3}}
ROME = {"name": "weather", "arguments": {"city": "Rome"}}


@pytest.mark.parametrize(
    ("text", "row", "reward"),
    [
        (called(OSLO), ROW, 1),
        ("Well: " + called(OSLO), ROW, 1),
        (json.dumps([OSLO]), ROW, 0),  # no block
        (called(OSLO | {"name": "Weather"}), ROW, 0),
        (called({"name": "weather", "arguments": {"city": "Oslo", "days": "3"}}), ROW, 0),  # text for a number
        (called({"name": "weather", "arguments": {"city": "Oslo"}}), ROW, 0),  # no days
        (called({"name": "weather", "arguments": {"city": "Oslo", "days": 3, "unit": "kelvin"}}), ROW, 0),
        (called(OSLO, OSLO), ROW, 0),
        (called(ROME, OSLO), TWICE, 1),
        (called(OSLO), TWICE, 0),
        ("<tool_call>{}</tool_call>", ROW, 0),
        ("<tool_call>7</tool_call>", ROW, 0),
        ("", ROW, 0),
        ("I am a model.", NOTHING, 1),
        ("<tool_call>[]</tool_call>", NOTHING, 1),
        (called(OSLO), NOTHING, 0),
        ("<tool_call>7</tool_call>", NOTHING, 0),
    ],
)
def test_the_reward_is_1_for_exactly_the_right_calls_and_else_0(text, row, reward):
    assert score(text, row).reward == reward


def test_a_thought_is_required_where_the_option_says_so():
    assert score(called(OSLO), think=True).reward == 0
    assert score("<think>Oslo.</think>" + called(OSLO), think=True).reward == 1


def test_an_unknown_option_is_refused():
    with pytest.raises(ConfigError):
        score(called(OSLO), thinks=True)


def test_without_the_package_the_remedy_is_how_to_install_it(monkeypatch):
    monkeypatch.setattr(function_calls, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as missing:
        function_calls.data_directory()
    assert function_calls.REQUIREMENT in str(missing.value)


def write(directory, name: str, questions: list[dict], answers: list[dict] | None) -> None:
    (directory / "possible_answer").mkdir(exist_ok=True)
    (directory / f"BFCL_v4_{name}.json").write_text("".join(json.dumps(q) + "\n" for q in questions))
    if answers is not None:
        path = directory / "possible_answer" / f"BFCL_v4_{name}.json"
        path.write_text("".join(json.dumps(a) + "\n" for a in answers))


@pytest.fixture
def bfcl(tmp_path):
    """Write files of BFCL's form: six rows a file, of functions f0 to f5 with a long one, and return the directory."""
    for name in function_calls.FILES:
        questions = [
            {
                "id": f"{name}_{i}",
                "question": [
                    [
                        {
                            "role": "user",
                            "content": f"Number {i} of {name}?" + "x" * (function_calls.MAX_CHARS if i == 5 else 0),
                        }
                    ]
                ],
                "function": [function(f"f{i}", city="string")],
            }
            for i in range(6)
        ]
        answers = [{"id": f"{name}_{i}", "ground_truth": [{f"f{i}": {"city": ["Oslo"]}}]} for i in range(6)]
        answers[4]["ground_truth"] = [{"f4": {"city": []}}]  # nothing that the checker would take
        write(tmp_path, name, questions, answers)
    for name in function_calls.IRRELEVANCE:
        write(tmp_path, name, [questions[0] | {"id": f"{name}_0"}], None)
    return tmp_path


def test_long_rows_and_those_that_nothing_answers_are_left_out(bfcl):
    rows = function_calls.read(bfcl)
    called = {name for row in rows for answer in row.answers for name in answer}
    assert called == {"f0", "f1", "f2", "f3"}
    assert len([row for row in rows if row.kind == "live"]) == 3 * len(called)


def test_the_first_rows_to_learn_from_are_as_many_of_each_kind(bfcl):
    rows = function_calls.read(bfcl)
    kinds = [row["meta"]["kind"] for row in function_calls.training_rows(rows, seed=1)]
    assert sorted(kinds[:4]) == ["live", "multiple", "parallel", "simple"]
    assert set(kinds[8:]) == {"live"}  # of which there are more


def test_no_tested_function_is_trained_and_irrelevance_is_tested_alone(bfcl):
    rows = function_calls.read(bfcl)
    train = function_calls.training_rows(rows, seed=1)
    test = function_calls.held_out_rows(rows)

    def functions(made) -> set[str]:
        return {f["name"] for row in made for f in json.loads(row["label"])["function"]}

    assert functions(train) == {"f0", "f2"}
    assert functions(test) == {"f1", "f3"}
    assert "irrelevance" not in {row["meta"]["kind"] for row in train}
    assert train != function_calls.training_rows(rows, seed=2)
    demonstrations = function_calls.demonstrations(rows)
    assert len(demonstrations) == len(train)
    assert all(row["messages"][-1]["role"] == "assistant" for row in demonstrations)
