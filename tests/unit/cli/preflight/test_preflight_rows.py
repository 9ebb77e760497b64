"""Rows whose label the reward compares: what is of another method is refused, what others judge or play is not."""

from __future__ import annotations

import json
import re

import pytest

from openrlhf_tir.cli.checks.data import check_data
from openrlhf_tir.config import Config
from openrlhf_tir.errors import DataError

CALLS = '[{"name": "f", "arguments": {}}]'


def checked(tmp_path, row, **sections):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "p", **row}) + "\n")
    data = {"prompt_dataset": str(rows), "input_template": "{}"} | sections.pop("data", {})
    return check_data(Config.model_validate({"data": data, "rollout": {"batch_size": 1}} | sections), training=True)


FUNCTIONS = {"env": {"name": "functions"}}
MATHS = {"reward": {"name": "math"}}


@pytest.mark.parametrize(
    ("row", "sections", "said"),
    [
        ({"label": CALLS}, MATHS, "Tool-N1.*tool_n1_7b"),
        ({"label": '{"target": ["a"]}'}, MATHS, "Search-R1"),
        ({"label": "1", "meta": {"id": 1}}, FUNCTIONS, "line 1: .*'domains'"),
        (
            {"label": CALLS},
            {"reward": {"name": "otc", "options": {"base": "math"}}},
            "Tool-N1.* 'math' | 'math' .*Tool-N1",
        ),
        (
            {"label": "<tool_call>\nnot json\n</tool_call>"},
            {"reward": {"name": "toolrl"}},
            " 1 .*<tool_call> .*'not json'",
        ),
    ],
)
@pytest.mark.parametrize("on_bad_row", ["error", "skip"])
def test_a_row_of_another_method_is_refused_and_never_left_out(tmp_path, row, sections, said, on_bad_row):
    with pytest.raises(DataError, match=r"rows\.jsonl line 1") as e:
        checked(tmp_path, row, **sections, data={"on_bad_row": on_bad_row})
    assert re.search(said, str(e.value))


@pytest.mark.parametrize(
    ("row", "sections"),
    [
        ({"label": CALLS}, {"rollout": {"agent": "external", "batch_size": 1}}),
        ({"label": '{"target": ["a"]}'}, {"train": {"agent_func_path": __file__}}),
        (
            {"label": CALLS, "meta": {"domains": ["files"], "gold": [[]]}},
            FUNCTIONS | {"reward": {"name": "otc", "options": {"base": "artist", "base_options": {"functions": True}}}},
        ),
        ({"label": "1", "meta": {"id": 1}}, {"env": {"name": "functions", "url": "http://h:1"}}),
        ({"label": "[" * 100_000}, MATHS),
        ({"label": "null"}, {"reward": {"name": "tooln1"}}),
        ({"label": "[]"}, {"reward": {"name": "tooln1"}}),
        ({"label": "[1,2]"}, MATHS),
    ],
)
def test_what_the_reward_can_compare_or_somebody_else_judges_is_let_pass(tmp_path, row, sections):
    assert re.match(r"1 .*rows\.jsonl", checked(tmp_path, row, **sections)[0])
