"""The overlap benchmark judges every trajectory in each of its ways, and tells that its seconds are emulated."""

from __future__ import annotations

from benchmarks.envs.swe_overlap import MOST_TURNS, SAMPLES, measure, trajectories


async def test_every_way_judges_every_trajectory():
    facts = await measure(prompts=1, scale=1e-5)
    ways = {f"swe_emulated_{way}_s" for way in ("stages", "slots", "overlapped")}
    assert set(facts) == ways | {"swe_overlap_ratio", "swe_overlap_over_slots"}


def test_the_same_durations_are_drawn_for_each_way():
    drawn = trajectories(2, seed=0)
    assert drawn == trajectories(2, seed=0) and len(drawn) == 2 * SAMPLES
    assert all(
        5 <= len(t.turns) <= MOST_TURNS and len(t.commands) == len(t.turns) - 1 and t.tests % 30 == 0 for t in drawn
    )
