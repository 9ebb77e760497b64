"""Items on disk: one row per problem, resumed per problem, never mixed with other settings', read by `data select`."""

from __future__ import annotations

import json

import numpy as np
import pytest

from openrlhf_tir.data.prepare.outcomes import read_outcomes
from openrlhf_tir.errors import ConfigError, DataError
from openrlhf_tir.evaluation.items import ITEMS, answer_of, item_of, read_item
from openrlhf_tir.evaluation.store import Store
from openrlhf_tir.types import Group, GroupKey, Segment, Task, ToolCall, Trajectory

TASKS = [Task(f"p{i}", str(i), row=f"row{i}", meta={"kind": "easy"}) for i in range(3)]


def sample(i: int, text: str, correct: float, failed: str | None = None, calls: list[str] = []) -> Trajectory:  # noqa: B006
    ids = np.arange(len(text), dtype=np.int32)
    said = Segment("model", ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), text)
    ran = [ToolCall("print(1)", "1", outcome) for outcome in calls]
    tool = [Segment.of_env([1, 2], "out \\boxed{9}")] if calls else []
    return Trajectory(
        i,
        ids,
        [said, *tool],
        ran,
        "stop",
        failed=failed,
        reward=None if failed else correct,
        parts={} if failed else {"correct": correct},
    )


def group(place: int, *samples: Trajectory) -> Group:
    return Group(GroupKey(-1, place), TASKS[place], list(samples))


def store(tmp_path, tasks=TASKS, **settings) -> Store:
    return Store(tmp_path / "aime", {"n": 2, "temperature": 1.0, **settings}, tasks)


def item(place: int, *correct: float):
    return item_of(
        "aime",
        place,
        TASKS[place],
        group(place, *(sample(i, f"\\boxed{{{c:g}}}", c) for i, c in enumerate(correct))),
        len(correct),
    )


def test_an_item_holds_what_every_valid_sample_did():
    made = item_of(
        "aime",
        1,
        TASKS[1],
        group(1, sample(0, "so \\boxed{4}", 1.0, calls=["ok", "error"]), sample(1, "no", 0.0, failed="timeout")),
        2,
    )
    assert (made.index, made.row, made.kind, made.correct, made.answers) == (1, "row1", "easy", [True], ["4"])
    assert (made.calls, made.calls_ok, made.used_code) == ([2], [1], [True])
    assert (made.response_tokens, made.model_tokens) == ([14], [12])
    assert made.failures == {"timeout": 1} and "failed" not in made.as_row()
    assert read_item(made.as_row(), "x") == made


def test_a_box_that_a_tool_printed_is_no_answer():
    assert answer_of(sample(0, "I think <answer> Beijing </answer>", 1.0, calls=["ok"])) == "Beijing"
    assert answer_of(sample(0, "I do not know", 0.0, calls=["ok"])) is None
    assert answer_of(sample(0, "```python\nprint('\\boxed{9}')\n```", 0.0)) is None


def test_half_right_is_not_right():
    assert item(0, 0.5, 0.51).correct == [False, True]


def test_a_second_run_samples_only_what_is_left(tmp_path):
    first = store(tmp_path)
    assert first.left == [0, 1, 2]
    first.add(item(1, 1.0, 0.0))
    first.close()
    second = store(tmp_path)
    assert second.left == [0, 2] and second.items == first.items


def test_a_line_that_a_kill_tore_is_sampled_again(tmp_path):
    first = store(tmp_path)
    first.add(item(0, 1.0, 0.0))
    first.close()
    path = tmp_path / "aime" / ITEMS
    path.write_text(path.read_text() + '{"suite": "aime", "ind')
    second = store(tmp_path)
    second.add(item(1, 0.0, 0.0))
    assert [json.loads(line)["index"] for line in path.read_text().splitlines()] == [0, 1] and second.left == [2]


def test_an_item_that_lost_samples_is_in_the_figures_and_sampled_again_by_the_next_run(tmp_path):
    first = store(tmp_path)
    first.add(item_of("aime", 2, TASKS[2], "engine_gone", 2))
    assert first.left == [0, 1] and first.items[0].lost == 2
    assert first.items[0].as_row()["failed"] == "engine_gone"
    first.close()
    assert store(tmp_path).left == [0, 1, 2] and (tmp_path / "aime" / ITEMS).read_text() == ""


def test_items_of_other_settings_are_refused_by_name(tmp_path):
    store(tmp_path).close()
    with pytest.raises(ConfigError, match=r"\(temperature: 1\.0 .*0\.0 .*--items"):
        store(tmp_path, temperature=0.0)


def test_items_of_which_nobody_knows_the_settings_are_refused(tmp_path):
    store(tmp_path).close()
    (tmp_path / "aime" / "settings.json").unlink()
    with pytest.raises(ConfigError, match=r"items\.jsonl.*settings\.json"):
        store(tmp_path)


def test_items_of_other_problems_are_refused(tmp_path):
    first = store(tmp_path)
    first.add(item(1, 1.0))
    first.close()
    with pytest.raises(ConfigError, match=r"items\.jsonl .*1 .*1 \(row1\)"):
        store(tmp_path, tasks=[TASKS[0], TASKS[2]])


def test_a_row_that_is_no_item_is_told(tmp_path):
    with pytest.raises(DataError, match="f row 1"):
        read_item({"correct": [True]}, "f row 1")
    for column, value in (("index", "0"), ("failures", ["timeout"]), ("failures", {"timeout": "1"}), ("answers", None)):
        with pytest.raises(DataError, match=r"f row 1"):
            read_item(item(0, 1.0).as_row() | {column: value}, "f row 1")
    with pytest.raises(DataError, match="1, 2"):
        read_item(item(0, 1.0, 0.0).as_row() | {"calls": [0]}, "f row 1")


def test_select_reads_the_items_as_samples_of_their_rows(tmp_path):
    """Of the first 1 of 2 is right; the second has one valid sample; the third has none, which says nothing."""
    made = store(tmp_path)
    made.add(item(0, 1.0, 0.0))
    made.add(item_of("aime", 1, TASKS[1], group(1, sample(0, "a", 1.0), sample(1, "b", 0.0, failed="timeout")), 2))
    made.add(item_of("aime", 2, TASKS[2], "engine_gone", 2))
    made.close()
    found = read_outcomes([str(tmp_path / "aime" / ITEMS)])
    assert {name: (o.pass_rate, o.total) for name, o in found.items()} == {"row0": (0.5, 2), "row1": (1.0, 1)}
