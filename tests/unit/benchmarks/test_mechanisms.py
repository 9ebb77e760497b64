"""What a mechanism brings: gain, spread and verdict by hand; the kept rows agree with the rule."""

from __future__ import annotations

import json

import pytest

from benchmarks.pipeline.mechanisms import RESULTS, markdown, row, verdict


@pytest.mark.parametrize(
    ("without", "gain", "spread", "expected"),
    [
        ((112.0, 120.0, 128.0), 0.20, 0.08, "earns its lines"),  # 0.20 > 2 * 0.08
        ((108.0, 120.0, 132.0), 0.20, 0.12, "no effect"),  # 0.20 < 2 * 0.12
        ((104.0, 105.0, 106.0), 0.05, 0.01, "below the bar"),
        ((80.0, 80.0, 80.0), -0.20, 0.0, "below the bar"),
        ((100.0, 100.0, 100.0), 0.0, 0.0, "no effect"),
    ],
)
def test_a_mechanism_earns_its_lines_by_a_tenth_and_by_twice_the_spread_of_the_seeds(without, gain, spread, expected):
    """Steps take 100 s with the mechanism."""
    result = row("m", "s", [(100.0, 1.0)] * 3, [(step_s, 2.0) for step_s in without])
    assert result["gain"] == pytest.approx(gain)
    assert result["spread"] == pytest.approx(spread)
    assert (result["age_with"], result["age_without"]) == (1.0, 2.0)
    assert verdict(result) == expected


def test_the_kept_rows_are_a_table_with_one_line_each():
    rows = json.loads(RESULTS.read_text())["rows"]
    assert len(markdown(rows).splitlines()) == 2 + len(rows)
    assert all(kept["earns"] == (kept["counts"] and kept["gain"] >= 0.10) for kept in rows)
    assert not any(kept["counts"] for kept in rows if len(kept["gains"]) < 2)


def test_one_seed_counts_for_nothing():
    result = row("m", "s", [(100.0, 1.0)], [(120.0, 1.0)])
    assert not result["counts"] and not result["earns"]
