"""SWE-Gym's and BFCL's rows: what becomes of the samples, and what a malformed one says."""

from __future__ import annotations

import json
import re

import pytest

from openrlhf_tir.config import Data
from openrlhf_tir.data.prompts import problems
from openrlhf_tir.errors import DataError
from tests.unit.data.test_convert import SAMPLES
from tests.unit.data.test_data_prompts import jsonl


def test_an_issue_is_the_input_and_the_instance_travels_to_the_environment():
    plain, nested = problems(Data(prompt_dataset=str(SAMPLES / "swegym.jsonl")))
    for p in (plain, nested):
        assert (p.input, p.label) == ("add(2, 2) returns 0.", "toy__sums-1")
        assert (
            p.meta["instance"]["FAIL_TO_PASS"] == ["test_sums.py::test_add"]
            and p.meta["instance"]["PASS_TO_PASS"] == []
        )


def test_the_first_turn_is_the_input_and_the_calls_of_every_turn_the_label():
    first, _ = problems(Data(prompt_dataset=str(SAMPLES / "bfcl_multi_turn.jsonl")))
    assert first.input == [{"role": "user", "content": "Make a directory 'new'."}]
    assert json.loads(first.label) == [["mkdir(dir_name='new')"], ["cd(folder='new')"]]
    assert first.meta["turns"] == [[{"role": "user", "content": "Go there."}]] and first.meta["involved_classes"] == [
        "GorillaFileSystem"
    ]


@pytest.mark.parametrize(
    ("sample", "change", "said"),
    [
        ("swegym", {"problem_statement": None}, r"problem_statement .*None \(NoneType\)"),
        ("swegym", {"FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS "),
        ("swegym", {"PASS_TO_PASS": [3]}, r"PASS_TO_PASS .*3 \(int\)"),
        ("swegym", {"PASS_TO_PASS": "x"}, "PASS_TO_PASS .*JSON"),
        (
            "bfcl_multi_turn",
            {"question": [{"role": "user", "content": "x"}]},
            r"question\[0\] .*{'role': 'user', 'content': 'x'} \(dict\)",
        ),
        ("bfcl_multi_turn", {"ground_truth": [[]]}, "ground_truth .*1 .* 2"),
        (
            "bfcl_multi_turn",
            {"ground_truth": [[1], []]},
            r"ground_truth\[0\] .*\[1\] \(list\)",
        ),
        (
            "bfcl_multi_turn",
            {"involved_classes": "X"},
            r"involved_classes .*'X' \(str\)",
        ),
        ("bfcl_multi_turn", {"question": []}, r".*\[\] \(list\)"),
    ],
)
def test_a_malformed_row_names_file_line_field_and_type(tmp_path, sample, change, said):
    row = json.loads((SAMPLES / f"{sample}.jsonl").read_text().splitlines()[0]) | change
    path = jsonl(tmp_path / "d.jsonl", [row])
    with pytest.raises(DataError, match=rf"{re.escape(str(path))} line 1: {said}"):
        list(problems(Data(prompt_dataset=path, row_schema=sample)))
