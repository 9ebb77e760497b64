"""benchmarks.pipeline.staleness_bound by hand: what is left of S + 1 steps to decode the longest response in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.pipeline.staleness_bound import PRECISION_S, hull, least_period_s
from openrlhf_tir.simulation.workload import SEED_WORKLOAD, EngineSpec, Lognormal, Workload

SEED = Workload.read(SEED_WORKLOAD)


def test_the_longest_response_needs_the_window_that_learner_and_pushes_leave():
    """100 tokens at 10 tokens/s in 2 P - 2 - 2 * 1: P = 7. Groups that start until the next push have P - 4: 14."""
    engine = EngineSpec(1, 1, 1000, ((1.0, 10.0),), 1e4, 1.0)
    w = replace(SEED, prompts=1, samples_per_prompt=1, engine=engine, response_tokens=Lognormal(10, 20, 100))
    assert least_period_s(w, 1, 2.0, lambda rate: 10.0) == pytest.approx(7, abs=2 * PRECISION_S)
    assert least_period_s(w, 1, 2.0, lambda rate: 10.0, late_starts=True) == pytest.approx(14, abs=2 * PRECISION_S)


def test_low_acceptance_makes_the_engines_the_bound():
    """At a share of 0.1 a saturated engine needs 49.3 / 0.1 s a step, longer than any window asks for."""
    saturated_s = SEED.prompts / SEED.saturated_groups_per_s
    assert least_period_s(SEED, 2, saturated_s, lambda rate: 21.5, acceptance=0.1) == pytest.approx(10 * saturated_s)


def test_the_hull_leaves_out_what_lies_below_a_line():
    x, y = hull(np.array([0.0, 1.0, 2.0, 3.0]), np.array([4.0, 1.0, 2.0, 0.0]))
    assert x.tolist() == [0, 2, 3] and y.tolist() == [4, 2, 0]
