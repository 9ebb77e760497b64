"""modes_real: equal work, worked by hand."""

from __future__ import annotations

import pytest

from benchmarks.pipeline.modes_real import Outcome, seconds_to, speedup


def test_seconds_to_a_number_of_tokens_are_linear_within_the_step_that_crosses():
    run = Outcome([10.0, 30.0], [100.0, 200.0], 0.9, 0.0)
    assert seconds_to(50, run) == 5
    assert seconds_to(100, run) == 10
    assert seconds_to(150, run) == 20
    with pytest.raises(ValueError, match=r" 200 .* 201\b"):
        seconds_to(201, run)


def test_modes_are_compared_at_the_tokens_that_both_have_trained():
    """sync: 100 tokens in 10 s. pipeline: 200 in 10 s, so 100 after 5 s."""
    assert speedup({"sync": Outcome([10.0], [100.0], 0.9, 0.0), "pipeline": Outcome([10.0], [200.0], 0.9, 0.0)}) == 2
