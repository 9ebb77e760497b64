"""What a row of metrics tells of the groups that finished."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openrlhf_tir.pipeline.group_metrics import rollout_metrics
from openrlhf_tir.pipeline.observer import Observer
from openrlhf_tir.rollout.group_meta import describe
from openrlhf_tir.types import KEEP, GroupKey, GroupMeta, StepReport, ToolCall, Trajectory

from .fakes import MemoryMetrics, Silent, group_of

B = 4


def accuracies(*finished: list[bool]) -> list[float]:
    """Accuracy of each row, when before each step these groups finish, all of their trajectories right or all wrong."""
    observer = Observer(MemoryMetrics(), Silent(), Silent())
    groups, rows = 0, []
    observer.metrics.log = lambda step, row: rows.append(row["accuracy"])
    for step, outcomes in enumerate(finished, 1):
        for right in outcomes:
            meta, _ = group_of(GroupKey(0, groups), step - 1)
            observer.group_finished("filtered" if right else "buffered", replace(meta, correct=[right, right]), None)
            groups += 1
        observer.step_finished(StepReport(step, {}, 1.0, 1), batch_groups=B, rolling=0, buffered=0, extra={})
    return rows


def test_all_groups_since_the_last_step_count():
    assert accuracies([True] * 6 + [False] * 2) == [0.75]


def test_few_groups_are_seen_with_those_before_them():
    """While the buffer was full one group finished, a wrong one: accuracy has not dropped to 0."""
    assert accuracies([True] * 8, [False], [], [False] * 5 + [True] * 5) == [1.0, 0.75, 0.75, 0.5]


def test_a_group_that_failed_counts_as_failed_and_never_as_kept_though_no_filter_dropped_it():
    """The failed group has answers, all right, and the verdict KEEP; the kept one's are wrong."""
    metrics = MemoryMetrics()
    observer = Observer(metrics, Silent(), Silent(), envs=("math", "search"))
    kept = replace(group_of(GroupKey(0, 0), 0, KEEP)[0], env="math", correct=[False, False])
    failed = replace(group_of(GroupKey(0, 1), 0, KEEP, "filter_error")[0], env="math", correct=[True, True])
    observer.group_finished("buffered", kept, None)
    observer.group_finished("failed", failed, failed.failed)
    observer.step_finished(StepReport(1, {}, 1.0, 1), batch_groups=B, rolling=0, buffered=0, extra={})
    row = metrics.rows[1]
    assert (row["env/math/kept"], row["env/math/failed/filter_error"], row["failed/filter_error"]) == (1, 1, 1)
    assert row["accuracy"] == 0.0


def test_parts_of_rewards_are_metrics_by_name_weighted_by_trajectories():
    one, _ = group_of(GroupKey(0, 0), 0)
    other, _ = group_of(GroupKey(0, 1), 0)
    one = replace(one, stats=one.stats | {"form": 1.0, "brevity": 0.5})
    other = replace(
        other, correct=[True] * 6, used_code=[True] * 6, response_tokens=[2] * 6, stats=other.stats | {"form": 0.0}
    )
    row = rollout_metrics([one, other])
    assert (row["reward/form"], row["reward/brevity"]) == (0.25, 0.5)
    assert not any(name.startswith("reward/") and name.split("/")[1] in ("calls", "truncated") for name in row)


def test_a_part_is_the_mean_of_the_responses_that_have_it_however_they_are_grouped():
    """Three of six responses say `speed`: .2, .4 and .9. It was 0 for the others of a group in which one says it."""

    def told(prompt: int, *speeds: float | None) -> GroupMeta:
        group = group_of(GroupKey(0, prompt), 0)[1]
        first = group.trajectories[0]
        group.trajectories = [
            replace(first, index=i, parts={"correct": 1.0} | ({} if speed is None else {"speed": speed}))
            for i, speed in enumerate(speeds)
        ]
        return describe(group, prompt_tokens=1, verdict=KEEP, failed=None, actor="", seconds=1.0)

    for groups in (
        [told(0, 0.2, None, 0.4, None), told(1, None, 0.9)],
        [told(0, 0.2, 0.4, 0.9), told(1, None, None, None)],
    ):
        row = rollout_metrics(groups)
        assert row["reward/speed"] == pytest.approx(0.5)
        assert [name for name in row if name.startswith("reward/")] == ["reward/speed"]


def called(prompt: int, *samples: tuple[bool, list[str]]) -> GroupMeta:
    """A group of samples (right or not, how each call ended), described as an actor does."""
    group = group_of(GroupKey(0, prompt), 0)[1]
    first = group.trajectories[0]
    group.trajectories = [
        replace(
            first,
            index=i,
            reward=float(ok),
            parts={"correct": float(ok)},
            calls=[ToolCall("x", "y", outcome) for outcome in calls],
        )
        for i, (ok, calls) in enumerate(samples)
    ]
    return describe(group, prompt_tokens=1, verdict=KEEP, failed=None, actor="", seconds=1.0)


def test_calls_are_told_apart_by_what_became_of_the_response():
    """Right: 2 calls, one of them ok, and none. Wrong: 3 calls, none ok, and 1, ok. So 2 of 6 calls are ok, 1 of 2 in
    right responses, 1 of 4 in wrong ones."""
    row = rollout_metrics(
        [called(0, (True, ["ok", "error"]), (False, ["error"] * 3)), called(1, (True, []), (False, ["ok"]))]
    )
    wanted = {
        "tool_productivity": 2 / 6,
        "calls_in_correct": 1.0,
        "code_pass": 2 / 6,
        "code_pass_correct": 0.5,
        "code_pass_incorrect": 0.25,
    }
    assert {name: row[name] for name in wanted} == pytest.approx(wanted)
    assert not any(name.startswith("reward/calls") for name in row)


def test_calls_are_told_by_how_many_a_response_makes():
    """0, 1, 3 and 4 calls in one group, 9 in one of a single sample; where no call can be made nothing is said."""
    few = called(0, (True, []), (False, ["ok"]), (True, ["ok"] * 3), (False, ["ok"] * 4))
    many = called(1, (True, ["ok"] * 9))
    row = rollout_metrics([few, many])
    shares = {name: value for name, value in row.items() if name.startswith("n_calls/")}
    wanted = {"0": 0.2, "1": 0.2, "2": 0.0, "3_4": 0.4, "5_8": 0.0, "9_up": 0.2}
    assert shares == pytest.approx({f"n_calls/{name}": share for name, share in wanted.items()})
    assert not any(name.startswith("reward/") for name in row)
    silent = replace(called(0, (True, []), (False, [])), env="sums")
    assert not any(name.startswith("n_calls/") for name in rollout_metrics([silent], {"sums"}))


def wrote(text: str, calls: int) -> Trajectory:
    """A right response of so many calls, whose model tokens say `text`; what the tool wrote has a program too, which is
    not the model's."""
    first = group_of(GroupKey(0, 0), 0)[1].trajectories[0]
    said = replace(first.segments[0], text=text, source="model")
    shown = replace(said, text="```python", source="env")
    return replace(
        first, reward=1.0, parts={"correct": 1.0}, calls=[ToolCall("x", "y", "ok")] * calls, segments=[said, shown]
    )


def test_programs_are_told_apart_by_whether_they_ran_and_whether_an_answer_came_before():
    """4 programs, of which 2 ran; 3 responses with one, of which 1 had answered before."""
    group = group_of(GroupKey(0, 0), 0)[1]
    texts = [
        ("```python\n1\n```\n```py\n2\n```", 1),
        ("\\boxed{1} ```python\n1", 0),
        ("```python\n1\n``` <answer>1</answer>", 1),
        ("no ```text", 0),
    ]
    group.trajectories = [replace(wrote(*said), index=i) for i, said in enumerate(texts)]
    row = rollout_metrics([describe(group, prompt_tokens=1, verdict=KEEP, failed=None, actor="", seconds=1.0)])
    assert (row["code_executed"], row["code_after_answer"]) == (pytest.approx(2 / 4), pytest.approx(1 / 3))
    assert not {"code_executed", "code_after_answer"} & rollout_metrics([called(0, (True, ["ok"]))]).keys()


def test_where_no_call_can_be_made_nothing_is_said_of_how_many_responses_called_a_tool():
    silent = replace(called(0, (True, []), (False, [])), env="sums")
    assert not {"code_ratio", "code_in_correct"} & rollout_metrics([silent], {"sums"}).keys()
    assert rollout_metrics([silent])["code_ratio"] == 0.0
    game = replace(called(1, (True, ["ok"]), (False, [])), env="game")
    assert rollout_metrics([silent, game], {"sums"})["code_ratio"] == 0.25
    assert rollout_metrics([game], {"game"})["code_ratio"] == 0.5, "an agent told of it"


def test_without_a_call_nothing_is_said_of_calls():
    row = rollout_metrics([called(0, (True, []), (False, []))])
    assert row["calls_in_correct"] == 0.0 and not {
        "tool_productivity",
        "code_pass",
        "code_pass_correct",
        "code_pass_incorrect",
    } & set(row)


def test_a_row_has_what_the_engines_seconds_grew_by_and_nothing_where_a_new_engine_began_at_zero():
    rows = []
    observer = Observer(MemoryMetrics(), Silent(), Silent())
    observer.metrics.log = lambda step, row: rows.append({name: row.get(name) for name in ("engine_busy_s", "running")})
    for step, busy_s in enumerate((3.0, 7.0, None, 8.5, 2.0, 2.5), 1):
        extra = {"running": 1.0} | ({} if busy_s is None else {"engine_busy_s": busy_s})
        observer.step_finished(StepReport(step, {}, 1.0, 1), batch_groups=B, rolling=0, buffered=0, extra=extra)
    assert [row["engine_busy_s"] for row in rows] == [3.0, 4.0, None, 1.5, 0.0, 0.5]
    assert {row["running"] for row in rows} == {1.0}
