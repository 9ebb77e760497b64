"""A wrong answer of a `reward_func` in a file is reported with the function's file and line."""

from __future__ import annotations

import pytest

from openrlhf_tir.errors import RewardError
from openrlhf_tir.rewards.remote.file import _Call as Call


@pytest.mark.parametrize(
    "answer",
    [
        "[1.0]",
        "{'reward': [1.0, 0.0]}",
        "{'rewards': [1.0, float('nan')]}",
        "{'rewards': [1.0, 0.0], 'scores': [1.0]}",
        "{'rewards': [1.0, 0.0], 'extra_logs': [1.0]}",
        "None",
    ],
)
def test_an_answer_of_another_form_has_the_line_of_its_function(tmp_path, answer):
    file = tmp_path / "reward.py"
    file.write_text(f"import math\n\n\ndef reward_func(queries, prompts, labels):\n    return {answer}\n")
    with pytest.raises(RewardError, match=f"{file}:4: "):
        Call(f"{file}:reward_func")(["1+1=2", "1+1=3"], ["1+1="] * 2, ["2"] * 2)


def test_what_nobody_reads_of_an_answer_stays_in_the_worker(tmp_path):
    """The trainer could not load an object of the file's own class, and that would end all workers."""
    file = tmp_path / "reward.py"
    file.write_text(
        "class Detail:\n    pass\n\n\ndef reward_func(queries, prompts, labels):\n"
        "    return {'rewards': [1.0], 'extra_logs': {'length': 3}, 'details': [Detail()]}\n"
    )
    answer = Call(f"{file}:reward_func")(["1+1=2"], ["1+1="], ["2"])
    assert answer == {"rewards": [1.0], "scores": None, "extra_logs": {"length": 3}}
