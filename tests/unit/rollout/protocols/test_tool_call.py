"""Tool-call formats: what is a call, what is malformed, and that no text whatever makes a parser raise or crawl."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_tir.rollout.protocols.calls.formats import PARSERS
from openrlhf_tir.rollout.protocols.calls.tool_call import Malformed, ParsedCall


def calls(fmt, text):
    return [(f.name, dict(f.arguments)) if isinstance(f, ParsedCall) else f.defect for f in PARSERS[fmt](text)]


@pytest.mark.parametrize(
    ("fmt", "text", "expected"),
    [
        (
            "fence",
            "so ```python\nprint(1)\n```\nand ```python\n2\n``` x",
            [("python", {"code": "print(1)"}), ("python", {"code": "2"})],
        ),
        ("fence", "```python\nprint(1)", ["unclosed"]),
        ("fence", "```python\n \n```", ["empty"]),
        ("fence", "```py\n1\n```", []),
        ("code", "<code>\n```python\nif 1:\n    f()\n```\n</code>", [("python", {"code": "if 1:\n    f()"})]),
        ("code", "<code>    x = 1</code><code>", [("python", {"code": "    x = 1"}), "unclosed"]),
        ("python", "a<python>1</python>b<python></python>", [("python", {"code": "1"}), "empty"]),
        ("search", "<search> who? </search>", [("search", {"query": "who?"})]),
        (
            "hermes",
            '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call> <tool_call>{"name": "g"}</tool_call>',
            [("f", {"x": 1}), ("g", {})],
        ),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', [("f", {"x": 1})]),
        ("hermes", '<tool_call>"{\\"name\\": \\"f\\"}"</tool_call>', [("f", {})]),
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', ["bad_arguments"]),
        ("hermes", '<tool_call>{"name": 3}</tool_call><tool_call>{"x": 3}</tool_call>', ["no_name", "no_name"]),
        ("hermes", "<tool_call>[]</tool_call><tool_call>7</tool_call>", ["not_a_call", "not_a_call"]),
        ("hermes", "<tool_call>{'name': 'f'}</tool_call>", ["not_json"]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', ["not_json"]),
        ("hermes", '<tool_call>{"name": "\\ud800"}</tool_call>', ["not_json"]),
        ("hermes", "<tool_call>" + "[" * 100_000 + "</tool_call>", ["not_json"]),
        ("hermes", "<tool_call>" + "9" * 5_000 + "</tool_call>", ["not_json"]),
        (
            "toolrl",
            '<tool_call>\n{"name": "f", "parameters": {"a": 1}}\n\n{"name": "g", "parameters": {}}\nnope\n</tool_call>',
            [("f", {"a": 1}), ("g", {}), "not_json"],
        ),
        ("toolrl", "<tool_call>\n</tool_call>", ["empty"]),
        ("toolrl", '<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call>', [("f", {})]),
        (
            "tooln1",
            '<tool_call>[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]</tool_call>',
            [("f", {"a": 1}), ("g", {})],
        ),
        ("tooln1", '<tool_call>{"name": "f"}</tool_call>', [("f", {})]),
        ("tooln1", '<tool_call>[{"name": "a"}]</tool_call><tool_call>[{"name": "b"}]</tool_call>', [("b", {})]),
        ("tooln1", "<tool_call>[]</tool_call>", []),
        ("tooln1", "<tool_call>[1, true]</tool_call>", ["not_a_call", "not_a_call"]),
        (
            "function",
            "<function=run>\n<parameter=cmd>\nls -la\n</parameter>\n</function>",
            [("run", {"cmd": "ls -la"})],
        ),
        ("function", "<function=run>\n<parameter=cmd>a < b</parameter></function", [("run", {"cmd": "a < b"})]),
        ("function", "<function=run>\n<parameter=cmd>  a\n  b\n </parameter>", [("run", {"cmd": "a\n  b"})]),
        ("function", "<function=run>\n<parameter=cmd>ls</function>", [("run", {})]),
        ("function", "<function=run>\n<parameter=cmd>ls</parameter></", [("run", {"cmd": "ls"})]),
        ("function", "<function=a>\n</function><function=b>\n</function>", [("a", {}), ("b", {})]),
        ("function", "<function=finish></function>", ["bad_arguments"]),
        ("function", "<function=></function>", ["no_name"]),
        ("function", "<function=run", ["bad_arguments"]),
        ("function", "<function=a>\n<function=b>\n", ["unclosed"]),
        ("function", "no call", []),
    ],
)
def test_what_each_format_reads(fmt, text, expected):
    assert calls(fmt, text) == expected


def test_a_malformed_call_says_what_is_wrong_with_it():
    (bad,) = PARSERS["hermes"]('<tool_call>{"name": f}</tool_call>')
    assert bad == Malformed(
        '{"name": f}', "not_json", "The call is not valid JSON: Expecting value: line 1 column 10 (char 9)."
    )


PIECES = [
    "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {}}', '"', "[", "{", "}", "\\", "```python", "```", "\n",
    "<code>", "</code>",
]  # fmt: skip
PIECES += [
    "<function=", "<parameter=", ">", "</parameter>", "</function>", "<python>", "</python>", "<search>", "</search>",
    "\x00", "é", "\ud800", "1e999",
]  # fmt: skip


@given(text=st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=40).map("".join))
def test_no_text_makes_a_parser_raise(text):
    for fmt, parse in PARSERS.items():
        for found in parse(text):
            assert isinstance(found, ParsedCall | Malformed), fmt


@pytest.mark.parametrize("fmt", PARSERS)
def test_tags_that_never_close_are_read_in_linear_time(fmt):
    """Eight times the text takes some eight times as long, not 64 times: quadratic. The best of three, for noise."""

    def seconds(repeats: int) -> float:
        text = "<tool_call><code><python><search><function=f><parameter=x>```python " * repeats
        start = time.process_time()
        PARSERS[fmt](text)
        return time.process_time() - start

    small, large = (min(seconds(n) for _ in range(3)) for n in (1_000, 8_000))
    assert large < 24 * small + 0.05
