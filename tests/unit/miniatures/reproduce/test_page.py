"""The page's picture: shares are in per cent, counts are not."""

from __future__ import annotations

from types import SimpleNamespace

from matplotlib.ticker import PercentFormatter

from miniatures.reproduce import methods, page
from miniatures.reproduce.arms import Read
from openrlhf_tir.observability.report.style import LIGHT


def test_a_share_has_an_axis_in_per_cent_and_a_count_has_room_for_what_it_is():
    miniature = methods.named("curriculum")
    read = Read({}, {"rolled per trained": [(1, 2.0), (36, 5.9)], "eval/accuracy": [(0, 0.3), (36, 0.9)]})
    figure = page.curves(miniature, [SimpleNamespace(seed=42, arms=dict.fromkeys(miniature.arms, read))], LIGHT)
    count, share = figure.axes[:2]
    assert count.get_ylim()[1] > 5.9 and not isinstance(count.yaxis.get_major_formatter(), PercentFormatter)
    assert share.get_ylim() == (0, 1.02) and isinstance(share.yaxis.get_major_formatter(), PercentFormatter)
