"""A step whose gradient is rounding noise may leave the weights as they are."""

from __future__ import annotations

import math

import pytest

from openrlhf_tir.types import StepReport


@pytest.mark.parametrize(
    ("grad_norm", "lr", "must_change"),
    [
        (9.65e-18, 1e-6, False),  # equal rewards, whitened: their mean is another number in the last bit
        (0.0, 1e-6, False),
        (1e-6, 1e-6, True),
        (1e-6, 0.0, False),
        (math.inf, 1e-6, False),
    ],
)
def test_weights_must_change_where_a_gradient_moves_them(grad_norm, lr, must_change):
    report = StepReport(1, {"grad_norm": grad_norm, "lr": lr}, 1.0, 100)
    assert report.must_change_weights is must_change
