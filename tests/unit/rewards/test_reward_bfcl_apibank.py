"""BFCL's and API-Bank's rewards by hand, and text that is no call: hostile text costs nothing but the reward."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_tir.errors import ConfigError
from openrlhf_tir.rewards import load
from openrlhf_tir.rewards.apibank import matches
from openrlhf_tir.rewards.bfcl import check_calls
from openrlhf_tir.rewards.checking.call_text import json_calls, python_calls
from tests.unit.rewards.reward_fakes import in_run, says, task

ADD = {
    "name": "math.add",
    "parameters": {"properties": {"a": {"type": "integer"}, "b": {"type": "float"}}, "required": ["a"]},
}
ANSWER = {"math.add": {"a": [1], "b": [2.0, ""]}}
LABEL = json.dumps({"function": [ADD], "possible_answer": [ANSWER], "category": "simple"})


def bfcl(text, label=LABEL, **options):
    return load("bfcl")(says(text), task(label), in_run(name="bfcl", options=options))


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("[math.add(a=1)]", 1.0),
        ("math.add(a=1, b=2)", 1.0),
        ("[math.add(a=3 - 2, b=2.0)]", 1.0),
        ("[math.add(a=True)]", 0.0),
        ("[math.add(1)]", 0.0),
        ("[math.add(a=1), math.add(a=1)]", 0.0),
        ("I would add them.", 0.0),
        ("", 0.0),
    ],
)
def test_the_calls_must_be_what_the_answer_allows(text, reward):
    assert bfcl(text).reward == reward


def test_json_lines_are_read_when_asked():
    text = '<tool_call>\n{"name": "math.add", "parameters": {"a": 1}}\n</tool_call>'
    assert bfcl(text, notation="json").reward == 1.0
    assert bfcl(text).reward == 0.0


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ('<think>t</think><tool_call>[{"name": "math.add", "arguments": {"a": 1}}]</tool_call>', 1.0),
        ('<tool_call>{"name": "math.add", "arguments": {"a": 1}}</tool_call>', 1.0),
        ('<tool_call>[]</tool_call><tool_call>[{"name": "math.add", "arguments": {"a": 1}}]</tool_call>', 0.0),
        ('<tool_call>[{"name": "math.add", "parameters": {"a": 1}}]</tool_call>', 0.0),
        ("<tool_call>[1]</tool_call>", 0.0),
        ("I would add them.", 0.0),
    ],
)
def test_tool_n1s_first_block_is_read_when_asked(text, reward):
    assert bfcl(text, notation="tooln1").reward == reward


def test_where_calls_are_relevant_any_call_is_right():
    label = json.dumps({"function": [ADD], "possible_answer": [], "category": "live_relevance"})
    assert bfcl("[math.multiply(a=1)]", label).reward == 1.0
    assert bfcl("No tool fits.", label).reward == 0.0


def test_nothing_to_call_is_right_only_without_calls():
    label = json.dumps({"function": [ADD], "possible_answer": []})
    assert bfcl("No tool fits.", label).reward == 1.0
    assert bfcl("[math.add(a=1)]", label).reward == 0.0


def test_of_two_descriptions_with_one_name_the_first_counts():
    second = {"name": "math.add", "parameters": {"properties": {}, "required": ["c"]}}
    for category in ("simple", "multiple", "parallel"):
        assert check_calls([ADD, second], [{"math.add": {"a": 1}}], [ANSWER], category) is None
        assert check_calls([second, ADD], [{"math.add": {"a": 1}}], [ANSWER], category) is not None


def test_parallel_calls_match_in_any_order_each_once():
    answers = [{"math.add": {"a": [1]}}, {"math.add": {"a": [2]}}]
    one, two = {"math.add": {"a": 1}}, {"math.add": {"a": 2}}
    assert check_calls([ADD], [two, one], answers, "parallel") is None
    assert check_calls([ADD], [one, one], answers, "parallel") == "parallel_function_checker_no_order:cannot_find_match"


@pytest.mark.parametrize(
    "text",
    [
        "[f(x=__import__('os').system('true')())]",
        "[f(x=--1)]",
        "[f(x=not not 1)]",
        "[f(x=-a)]",
        "[f(x=-None)]",
        "[f(x=-(1 + 2))]",
        "[1]",
        "[f(x=9**9**9)]",
        "[f(x=1 << 9**9)]",
        "[f(x='a' * 10**9)]",
        "[f(x='%999999999d' % 1)]",
        "[f(x=a + b)]",
        "[f(x={[]: 1})]",
        "[f(x=-'a')]",
        "[f(x=1/0)]",
        "(" * 5000,
        "f(x=\0)",
    ],
)
def test_text_that_is_not_a_call_is_a_value_error_and_never_evaluated(text):
    if text.startswith("[f(x=__import__"):
        assert python_calls(text) == [{"f": {"x": "__import__('os').system('true')()"}}]
        return
    with pytest.raises(ValueError):
        python_calls(text)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("2**3", 8),
        ("7 // 2", 3),
        ("7 % 4", 3),
        ("'a' + 'b'", "ab"),
        ("[1] + [2]", [1, 2]),
        ("True + 1", 2),
        ("3 * 'ab'", "ababab"),
        ("1 << 3", 8),
        ("2 * (1 + -3)", -4),
        ("-(1 + 2) * 3", -9),
    ],
)
def test_arithmetic_of_an_argument_is_worked_out(argument, value):
    assert python_calls(f"[f(x={argument})]") == [{"f": {"x": value}}]


@pytest.mark.parametrize(
    ("argument", "value"),
    [("-1", -1), ("+1", -1), ("~1.5", -1.5), ("not 1", -1), ("-True", -1), ("1 + +3", 4), ("2 * ~3", -8)],
)
def test_every_unary_operator_is_a_minus_as_in_bfcl_except_within_arithmetic(argument, value):
    assert python_calls(f"[f(x={argument})]") == [{"f": {"x": value}}]


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("f()(x=1)", {"": {"x": 1}}),
        ("x[0](y=2)", {"": {"y": 2}}),
        ("1()", {"": {}}),
        ("a.b.c()", {"a.b.c": {}}),
        ("f().g.h(x=1)", {"g.h": {"x": 1}}),
        ("f(**x)", {"f": {None: "x"}}),
        ("f(x=g()(y=1))", {"f": {"x": {"": {"y": 1}}}}),
        ("f(x=(a + b)[1, 2])", {"f": {"x": "a + b[(1, 2)]"}}),
    ],
)
def test_odd_calls_count_as_calls_where_no_call_is_expected_as_in_bfcl(text, call):
    assert python_calls(text) == [call]
    assert bfcl(text, json.dumps({"function": [ADD], "possible_answer": []})).reward == 0.0
    assert bfcl(text).reward == 0.0


def checked(value, allowed, kind="dict", items=None):
    function = {
        "name": "f",
        "parameters": {"properties": {"x": {"type": kind, "items": {"type": items}}}, "required": ["x"]},
    }
    return check_calls([function], [{"f": {"x": value}}], [{"f": {"x": allowed}}], "simple")


@pytest.mark.parametrize(
    ("value", "allowed", "error"),
    [
        ({"b": 9}, [{"a": ["x"], "b": [1, ""]}], "value_error:dict_key"),  # a key that is missing counts last
        ({"a": "y", "c": 1}, [{"a": ["x"]}], "value_error:dict_value"),  # the first entry that is wrong
        ({"c": 1, "a": "y"}, [{"a": ["x"]}], "value_error:dict_key"),
        # strings of a list in a dict are compared as they are
        ({"a": ["X Y"]}, [{"a": [["xy"]]}], "value_error:dict_value"),
        ({"a": "X Y"}, [{"a": ["xy"]}], None),
    ],
)
def test_a_dict_is_wrong_by_its_first_wrong_entry_unless_a_key_is_missing(value, allowed, error):
    assert checked(value, allowed) == error


def test_an_empty_list_stands_for_a_list_that_may_be_left_out():
    assert checked([], [["a"], ""], "array", "string") is None


@pytest.mark.parametrize("value", [[5], ["a"], [None]])
def test_a_value_that_should_be_a_dict_is_a_type_error(value):
    assert checked(value, [[{"a": [1]}], ""], "array", "dict") == "type_error:nested"


def test_an_answer_on_which_the_reference_crashes_is_wrong():
    assert checked(10**400, [1.0], "float") == "type_error:simple"
    for parameters in ("null", "[1]", "3"):
        assert (
            bfcl(
                f'<tool_call>\n{{"name": "math.add", "parameters": {parameters}}}\n</tool_call>', notation="json"
            ).reward
            == 0.0
        )


@given(st.text(alphabet="[]f(x=1,'a:{})-*\n`. ", max_size=60))
def test_any_text_gives_calls_or_a_value_error(text):
    try:
        calls = python_calls(text)
    except ValueError:
        return
    assert all(isinstance(next(iter(c.values())), dict) for c in calls)


def test_only_a_newline_ends_a_line_and_lines_have_no_surrounding_space():
    assert json_calls('<tool_call>{"name": "f", "parameters": {"x": "a\u2028b"}}') == [
        {"name": "f", "parameters": {"x": "a\u2028b"}}
    ]
    assert json_calls('<tool_call>{"name": " None "}</tool_call>') == []


@given(st.text(max_size=60))
def test_any_block_gives_a_list_of_named_calls(text):
    assert all(isinstance(c["name"], str) for c in json_calls(f"<tool_call>{text}"))


@pytest.mark.parametrize(
    ("line", "reward"),
    [
        ('{"name": "Q", "parameters": {"n": 3}}', 1.0),
        ('{"name": "Q", "parameters": {"n": 3.0}}', 1.0),
        ('{"name": "q", "parameters": {"n": 3}}', 0.0),
        ('{"name": "Q"}', 0.0),
        ("[1]", 0.0),
    ],
)
def test_an_api_bank_call_is_the_gold_call_or_wrong(line, reward):
    gold = '{"name": "Q", "parameters": {"n": 3}}'
    assert (
        load("apibank")(says(f"<tool_call>\n{line}\n</tool_call>"), task(gold), in_run(name="apibank")).reward == reward
    )


GOLD = '{"name": "Q", "parameters": {"n": 3}}'


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ('<tool_call>\n{"n": 3}\n</tool_call>', 1.0),  # a call without a name is its parameters alone
        ('<tool_call>\n{"parameters": {"n": 3}}\n</tool_call>', 0.0),
        ('<tool_call>\n{"name": "none", "parameters": {}}\n' + GOLD + "\n</tool_call>", 1.0),
        ('<tool_call>\n{"name": null, "parameters": {}}\n' + GOLD + "\n</tool_call>", 1.0),
        ("<tool_call>\n3\n" + GOLD + "\n</tool_call>", 0.0),  # a number ends the search
        ("<tool_call>\nnonsense\n" + GOLD + "\n</tool_call>", 1.0),  # what is no JSON does not
        (GOLD, 1.0),  # without a block all of the response is one
        (GOLD + "\n</tool_call>", 1.0),
        (GOLD + "<|im_end|>", 1.0),
        ("<tool_call>\n" + GOLD + "\n</tool_call>\n<tool_call>", 0.0),  # the last block counts, and it is empty
    ],
)
def test_api_bank_reads_lines_as_the_reference_does(response, reward):
    assert load("apibank")(says(response), task(GOLD), in_run(name="apibank")).reward == reward


def test_an_unknown_notation_is_named():
    with pytest.raises(ConfigError, match="yaml"):
        bfcl("", notation="yaml")


def test_the_first_of_a_list_of_gold_calls_counts():
    gold = '[{"name": "Q", "parameters": {"n": 3}}, {"name": "R", "parameters": {}}]'
    for call, reward in (('{"name": "Q", "parameters": {"n": 3}}', 1.0), ('{"name": "R", "parameters": {}}', 0.0)):
        assert (
            load("apibank")(says(f"<tool_call>\n{call}\n</tool_call>"), task(gold), in_run(name="apibank")).reward
            == reward
        )


@pytest.mark.parametrize("first", ["1", "null", "true", '"name and parameters"', '["name", "parameters"]'])
def test_a_value_without_keys_ends_the_search_as_in_the_reference(first):
    assert not matches([first, {"name": "Q", "parameters": {}}], {"name": "Q", "parameters": {}})


def test_nested_text_is_compared_and_the_search_continues_as_in_the_reference():
    assert matches(['"hello"', {"name": "Q", "parameters": {}}], {"name": "Q", "parameters": {}})
