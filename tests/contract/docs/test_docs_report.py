"""docs/report.md: what every figure of the report answers, in the order of the report."""

from __future__ import annotations

from openrlhf_tir.observability.report.bias import BIAS_CURVES
from openrlhf_tir.observability.report.curves import CURVES
from openrlhf_tir.observability.report.environments import ENV_CURVES
from openrlhf_tir.observability.report.held_out import HELD_OUT_CURVES

from .docs_blocks import DOCS


def test_every_figure_has_a_row_under_its_own_title():
    titles = [curve.title for curve in (*CURVES, *HELD_OUT_CURVES, *ENV_CURVES, *BIAS_CURVES)]
    rows = [line.split("|")[1].strip() for line in (DOCS / "report.md").read_text().splitlines() if line[:1] == "|"]
    assert [row for row in rows if row in titles] == titles
