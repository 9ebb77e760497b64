"""Where an update's time goes: parts of a row that add up, by hand; which updates count; what is left out."""

from __future__ import annotations

import pytest

from openrlhf_tir.observability.report.cycle import cycle_of, engine_parts, learner_parts, rows_of

ROW = {
    "wall_s": 20.0,
    "replay_wait_s": 2.0,
    "gate_wait_s": 0.5,
    "accumulate_s": 3.0,
    "step_s": 7.0,
    "passes_s": 6.0,
    "scoring_s": 2.0,
    "optimizer_s": 1.5,
    "push_s": 4.0,
    "push_write_s": 1.0,
    "push_pause_s": 9.0,  # of another engine
    "push_freeze_s": 0.125,
    "push_begin_s": 0.125,
    "push_load_s": 0.5,
    "push_read_back_s": 0.25,
    "push_resume_s": 0.25,
    "push_canary_s": 0.75,
    "push_score_s": 0.5,
    "checkpoint_s": 1.0,
    "evaluate_s": 0.25,
}
ENGINES = {
    "engine_busy_s": 10.0,
    "engine_prefill_s": 4.0,
    "engine_env_wait_s": 3.0,
    "engine_idle_s": 2.0,
    "engine_paused_s": 1.0,
}


def columns(*rows: dict[str, float]) -> dict[str, list]:
    numbered = [{"step": step} | row for step, row in enumerate(rows, 1)]
    names = dict.fromkeys(name for row in numbered for name in row)
    return {name: [row.get(name) for row in numbered] for name in names}


def test_every_second_of_an_update_belongs_to_one_part():
    parts = learner_parts(ROW)
    assert {name: seconds for name, seconds in parts.items() if seconds} == {
        "wait_for_groups": 2.0,
        "wait_for_gate": 0.5,
        "passes": 6.0,
        "scoring": 2.0,
        "optimizer": 1.5,
        "step_rest": 0.5,  # 3 + 7 - 9.5
        "push_write": 1.0,
        "push_load": 0.5,
        "push_read_back": 0.25,
        "push_pause_rest": 0.5,  # .125 + .125 + .25
        "proof": 1.25,
        "push_rest": 0.5,  # 4 - 1.25 - 1.25 - 1
        "checkpoint": 1.0,
        "evaluation": 0.25,
        "other": 2.25,  # 20 - 2.5 - 10 - 4 - 1.25
    }
    assert sum(parts.values()) == ROW["wall_s"]


def test_a_learner_that_does_not_split_its_step_has_one_part_of_it():
    parts = learner_parts({"wall_s": 5.0, "step_s": 3.0})
    assert (parts["step_rest"], parts["passes"], parts["other"]) == (3.0, 0.0, 2.0)


def test_writing_while_engines_load_a_broadcast_counts_as_loading():
    """Of 3 s loading takes 2 and the proof .5, so that .5 of the 2.25 s of writing lie outside."""
    parts = learner_parts({"wall_s": 3.0, "push_s": 3.0, "push_load_s": 2.0, "push_write_s": 2.25, "push_score_s": 0.5})
    assert (parts["push_load"], parts["proof"], parts["push_write"]) == (2.0, 0.5, 0.5)
    assert sum(parts.values()) == 3.0


def test_parts_of_an_earlier_push_take_no_time_of_an_update_without_one():
    """Its figures stay in the rows until the next push."""
    parts = learner_parts({name: value for name, value in ROW.items() if name != "push_s"})
    assert not any(seconds for name, seconds in parts.items() if name.startswith(("push", "proof")))


def test_engines_decode_in_the_seconds_with_requests_that_are_no_prefill():
    assert engine_parts(ENGINES) == {"prefill": 4.0, "decode": 6.0, "env_wait": 3.0, "idle": 2.0, "paused": 1.0}
    assert engine_parts({"running": 3.0}) == {}


def test_the_first_two_updates_and_the_shortest_and_longest_quarter_do_not_count():
    """Of 99, 98 | 4, 8, 20, 6 the middle two: 6 and 8."""
    waits = [{"wall_s": wall_s, "replay_wait_s": wall_s / 2} | ENGINES for wall_s in (99.0, 98.0, 4.0, 8.0, 20.0, 6.0)]
    cycle = cycle_of(columns(*waits))
    assert cycle is not None
    assert (cycle.updates, cycle.wall_s) == (2, 7.0)
    assert cycle.learner_s == {"wait_for_groups": 3.5, "other": 3.5}
    assert cycle.engine_share == pytest.approx(
        {"decode": 6 / 16, "prefill": 4 / 16, "env_wait": 3 / 16, "idle": 2 / 16, "paused": 1 / 16}
    )


def test_the_last_update_stands_for_a_run_of_two():
    cycle = cycle_of(columns({"wall_s": 9.0}, {"wall_s": 3.0}))
    assert cycle is not None and (cycle.updates, cycle.wall_s) == (1, 3.0)


def test_the_table_has_seconds_and_shares_and_no_engines_that_measure_nothing():
    rows = rows_of(columns({"wall_s": 4.0, "step_s": 3.0}))
    assert [row[1:] for row in rows] == [("4.00", "100.0 %"), ("3.00", "75.0 %"), ("1.00", "25.0 %")]
    with_engines = rows_of(columns({"wall_s": 4.0, "step_s": 3.0} | ENGINES))
    assert [row[2] for row in with_engines[3:]] == ["37.5 %", "25.0 %", "18.8 %", "12.5 %", "6.2 %"]


@pytest.mark.parametrize("none", [{}, {"step": [0], "eval/accuracy": [0.5]}])
def test_a_run_without_an_update_has_none(none):
    assert cycle_of(none) is None and rows_of(none) == []
