"""Pass rates from samples, LIMR's score by hand, and which rows stay."""

from __future__ import annotations

import pytest

from openrlhf_tir.data.identity import row_id
from openrlhf_tir.data.prepare.learning_impact import learning_impact
from openrlhf_tir.data.prepare.outcomes import Outcome, read_outcomes
from openrlhf_tir.data.prepare.selection import Selection
from openrlhf_tir.data.prompts import Problem
from openrlhf_tir.errors import ConfigError, DataError
from openrlhf_tir.telemetry.trajectories import TrajectoryLog
from openrlhf_tir.types import KEEP, Group, GroupKey, Task, Verdict
from tests.pipeline.fakes import group_of
from tests.unit.data.test_data_prompts import jsonl
from tests.unit.observability.report.test_samples import member


def outcome(**by_epoch):
    """e0=(right, samples), ..."""
    made = Outcome()
    for epoch, (right, samples) in by_epoch.items():
        made.add(int(epoch[1:]), right, samples)
    return made


def test_a_rows_score_is_how_it_goes_with_the_mean():
    """Means .25 and .75: room .75^2 + .25^2 = .625. up: 1 - (.25^2 + .25^2) / .625 = .8; flat too; the mean 1."""
    scores = learning_impact(
        {
            "up": outcome(e0=(0, 4), e1=(4, 4)),
            "mean": outcome(e0=(1, 4), e1=(3, 4)),
            "flat": outcome(e0=(2, 4), e1=(2, 4)),
        }
    )
    assert scores == {"up": pytest.approx(0.8), "mean": 1.0, "flat": pytest.approx(0.8)}


def test_a_row_that_is_right_from_the_start_has_no_impact():
    """Means .5 and .75: room .3125, and so far are both rows from the means."""
    assert learning_impact({"always": outcome(e0=(2, 2), e1=(2, 2)), "late": outcome(e0=(0, 2), e1=(1, 2))}) == {
        "always": 0.0,
        "late": 0.0,
    }


def test_an_epoch_without_samples_takes_the_next_and_the_last_must_be_there():
    scores = learning_impact(
        {"a": outcome(e0=(0, 2), e1=(2, 2)), "late": outcome(e1=(2, 2)), "early": outcome(e0=(1, 2))}
    )
    assert set(scores) == {"a", "late"}
    assert scores["late"] == pytest.approx(0.0), "as if right from the start: means .5 and 1, room .25, distance .25"


def test_samples_of_one_epoch_cannot_be_scored():
    with pytest.raises(DataError, match=r"\b1\b"):
        learning_impact({"a": outcome(e0=(1, 2))})


def test_samples_that_are_all_right_cannot_be_scored():
    nearly_right = {"a": outcome(e0=(2, 2), e1=(1, 1)), "b": outcome(e0=(1, 2), e1=(1, 1))}
    learning_impact(nearly_right)
    with pytest.raises(DataError):
        learning_impact({"a": nearly_right["a"]})


def test_a_runs_samples_are_counted_by_row_those_that_a_filter_dropped_too(tmp_path):
    log = TrajectoryLog(tmp_path, "rollout-0", 1.0)
    for epoch, verdict in ((0, KEEP), (1, Verdict(False, "accuracy_high"))):
        key = GroupKey(epoch, 7)
        meta, _ = group_of(key, 2, verdict)
        members = [
            member(0, "x"),
            member(1, "y", parts={"correct": float(epoch)}),
            member(2, "z", failed="timeout", parts={}),
        ]
        log.write(meta, Group(key, Task("Q: 6*7", "42", row=row_id("6*7", "42")), members))
    log.close()
    assert {row: o.by_epoch() for row, o in read_outcomes([str(tmp_path)]).items()} == {
        row_id("6*7", "42"): {0: 0.5, 1: 1.0}
    }


def test_samples_of_a_file_are_found_by_text_and_may_be_several_a_line(tmp_path):
    lines = [
        {"question": "a", "correct": True},
        {"prompt": [{"role": "user", "content": "a"}], "correct": 0.4},
        {"input": " b ", "correct": [1, 0, 0], "epoch": 3},
        {"question": "c", "correct": 1, "failed": "timeout"},
    ]
    found = read_outcomes([jsonl(tmp_path / "s.jsonl", lines)])
    assert {name: (o.pass_rate, o.total) for name, o in found.items()} == {
        "a": (0.5, 2),
        "b": (pytest.approx(1 / 3), 3),
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"question": "a"}, r"line 1: 'correct' .*None \(NoneType\)"),
        ({"question": "a", "correct": "yes"}, r"line 1: 'correct' .*'yes' \(str\)"),
        ({"question": "a", "correct": []}, r"line 1: 'correct' .*\[\] \(list\)"),
        ({"correct": 1}, "'row'.*question, input, prompt"),
        ({"question": "a", "correct": 1, "epoch": "x"}, r"line 1: 'epoch' .*'x' \(str\)"),
    ],
)
def test_a_malformed_sample_names_file_line_field_and_type(tmp_path, line, said):
    with pytest.raises(DataError, match=said):
        read_outcomes([jsonl(tmp_path / "s.jsonl", [line])])


def test_samples_that_are_not_there_say_how_to_get_them(tmp_path):
    with pytest.raises(ConfigError, match="--samples nowhere"):
        read_outcomes(["nowhere"])
    with pytest.raises(DataError, match=r"--logger\.trajectories 1"):
        read_outcomes([str(tmp_path)])


def selection(pass_rate=None, impact=None, keep_unsampled=False, min_samples=1):
    """Rows 0 to 4 with 0, 1, 2, 3 of 4 right, and one without samples."""
    outcomes = {row_id(str(i), "x"): outcome(e0=(i, 4)) for i in range(4)}
    made = Selection(outcomes, pass_rate, impact, min_samples, keep_unsampled)
    for i in range(5):
        made.look(Problem(f"line {i}", str(i), "x", None, {}))
    return made


def test_rows_stay_by_their_pass_rate_both_ends_included():
    assert selection((0.25, 0.75)).kept_places() == {1, 2, 3}
    assert selection((0.25, 0.75), keep_unsampled=True).kept_places() == {1, 2, 3, 4}
    assert selection((0.0, 1.0), min_samples=5).kept_places() == set()
    assert selection((0.0, 1.0)).kept_places(top=2) == {2, 1}, "nearest to 1/2, the earlier first"
    assert selection((0.0, 0.5)).facts()[0] == "  4 rows were sampled, 1 not; pass rate:"
