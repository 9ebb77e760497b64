"""Spans: the overlap ratio by hand, the intervals it is made of, and the file that Perfetto opens."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_tir.telemetry import timeline
from openrlhf_tir.telemetry.intervals import intersection, lanes, length, union
from openrlhf_tir.telemetry.timeline import Span, Timeline, overlap_ratio, to_perfetto


def step(start, end, name="step 1"):
    return Span("learner", name, start, end)


def decode(start, end, engine=0, name="decode"):
    return Span(f"engine/{engine}", name, start, end)


def test_union_joins_overlapping_and_touching_intervals_and_drops_empty_ones():
    assert union([(5, 6), (0, 2), (1, 3), (3, 4), (7, 7)]) == [(0, 4), (5, 6)]


def test_intersection_of_two_unions_by_hand():
    # [0,4] [6,10] against [3,7] [8,9] -> [3,4] [6,7] [8,9]
    assert intersection([(0, 4), (6, 10)], [(3, 7), (8, 9)]) == [(3, 4), (6, 7), (8, 9)]


def test_overlap_is_the_share_of_step_time_with_a_decode_running():
    # steps 0-10 and 20-30: 20 s. decodes cover 5-12 (two engines, overlapping) and 29-40: 5 + 1 = 6 s of it.
    spans = [step(0, 10), step(20, 30), decode(5, 9), decode(8, 12, engine=1), decode(29, 40)]
    assert overlap_ratio(spans) == pytest.approx(6 / 20)


def test_two_engines_at_once_do_not_count_twice():
    assert overlap_ratio([step(0, 4), decode(0, 2), decode(0, 2, engine=1)]) == 0.5


def test_a_sequential_run_overlaps_nothing():
    assert overlap_ratio([decode(0, 5), step(5, 8), decode(8, 13)]) == 0.0


def test_canary_requests_pauses_and_waits_count_neither_as_decoding_nor_as_steps():
    spans = [
        step(0, 4),
        step(4, 8, name="wait"),
        decode(0, 1),
        decode(1, 4, name="canary"),
        Span("weights", "decode", 0, 4),
    ]
    assert overlap_ratio(spans) == 0.25


def test_no_steps_means_no_overlap():
    assert overlap_ratio([decode(0, 5)]) == 0.0


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)


@pytest.mark.slow
@given(steps=intervals, decodes=intervals)
def test_overlap_agrees_with_counting_seconds_one_by_one(steps, decodes):
    in_step = {t for a, b in steps for t in range(a, b)}
    in_decode = {t for a, b in decodes for t in range(a, b)}
    expected = len(in_step & in_decode) / len(in_step) if in_step else 0.0
    assert overlap_ratio([step(a, b) for a, b in steps] + [decode(a, b) for a, b in decodes]) == pytest.approx(expected)


@pytest.mark.slow
@given(intervals)
def test_no_two_spans_of_a_lane_overlap(spans):
    ordered = sorted(spans)
    by_lane = {}
    for span, lane in zip(ordered, lanes(ordered), strict=True):
        by_lane.setdefault(lane, []).append(span)
    for mine in by_lane.values():
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(mine))
    assert length(union(spans)) <= sum(b - a for a, b in spans)


def test_spans_are_written_when_they_end_and_read_in_order_of_start(tmp_path):
    log = Timeline(tmp_path / "trace.jsonl")
    with log.span("learner", "step 1", groups=16):
        log.add("engine/0", "decode", 1.0, 2.0)
    first, second = timeline.read(tmp_path)
    assert (first.track, first.start, first.end) == ("engine/0", 1.0, 2.0)
    assert (second.name, second.args) == ("step 1", {"groups": 16})
    assert second.end >= second.start > 1e9
    log.close()


def test_a_span_whose_body_raises_is_written_with_the_error(tmp_path):
    log = Timeline(tmp_path / "trace.jsonl")
    with pytest.raises(KeyError), log.span("weights", "push 3"):
        raise KeyError("x")
    assert timeline.read(tmp_path)[0].args == {"error": "KeyError"}
    log.close()


def test_two_writers_share_one_file(tmp_path):
    a, b = Timeline(tmp_path / "trace.jsonl"), Timeline(tmp_path / "trace.jsonl")
    a.add("learner", "step 1", 0.0, 1.0)
    b.add("engine/0", "decode", 0.5, 1.5)
    a.add("learner", "step 2", 1.0, 2.0)
    assert [s.name for s in timeline.read(tmp_path)] == ["step 1", "decode", "step 2"]
    a.close()
    b.close()


def test_perfetto_gets_microseconds_from_the_first_span_and_overlapping_requests_on_their_own_threads(tmp_path):
    log = Timeline(tmp_path / "trace.jsonl")
    log.add("engine/0", "decode", 100.0, 103.0, request="a")
    log.add("engine/0", "decode", 101.0, 102.0)
    log.add("learner", "step 1", 102.5, 104.0)
    log.close()
    written = json.loads(to_perfetto(tmp_path).read_text())
    complete = {(e["cat"], e["tid"]): e for e in written["traceEvents"] if e["ph"] == "X"}
    assert sorted(complete) == [("engine/0", 1), ("engine/0", 2), ("learner", 1)]
    assert (complete["engine/0", 1]["ts"], complete["engine/0", 1]["dur"], complete["engine/0", 1]["args"]) == (
        0.0,
        3e6,
        {"request": "a"},
    )
    assert (complete["learner", 1]["ts"], complete["learner", 1]["dur"]) == (2.5e6, 1.5e6)
    assert {e["args"]["name"] for e in written["traceEvents"] if e["ph"] == "M"} == {"engine/0", "learner"}


def test_a_full_disk_loses_no_run_and_garbled_spans_are_left_out(tmp_path, monkeypatch, caplog):
    path = tmp_path / "trace.jsonl"
    spans = Timeline(path)
    spans.add("learner", "step 1", 1.0, 2.0)

    def full(fd, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("openrlhf_tir.telemetry.jsonl.os.write", full)
        spans.add("learner", "step 2", 2.0, 3.0)
        spans.add("learner", "step 3", 3.0, 4.0)
    spans.add("learner", "step 4", 4.0, 5.0)
    spans.close()
    assert [span.name for span in timeline.read(tmp_path)] == ["step 1", "step 2", "step 3", "step 4"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"], "the refusal and its end"
    with path.open("ab") as file:
        file.write(b'{"track": 1}\n\x00\x01\n')
    assert len(timeline.read(tmp_path)) == 4
