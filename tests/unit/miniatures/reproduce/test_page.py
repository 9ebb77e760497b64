"""The page, and its picture: shares are in per cent, counts are not."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from matplotlib.ticker import PercentFormatter

from miniatures.reproduce import methods, page
from miniatures.reproduce.arms import Read

from .fakes import Fake, go, otc_rows


def test_a_share_has_an_axis_in_per_cent_and_a_count_has_room_for_what_it_is():
    miniature = methods.named("curriculum")
    read = Read({}, {"rolled per trained": [(1, 2.0), (36, 5.9)], "eval/accuracy": [(0, 0.3), (36, 0.9)]})
    figure = page.curves(miniature, [SimpleNamespace(seed=42, arms=dict.fromkeys(miniature.arms, read))])
    count, share = figure.axes[:2]
    assert count.get_ylim()[1] > 5.9 and not isinstance(count.yaxis.get_major_formatter(), PercentFormatter)
    assert share.get_ylim() == (0, 1.02) and isinstance(share.yaxis.get_major_formatter(), PercentFormatter)


@pytest.mark.slow
def test_the_page_has_claim_verdict_curves_table_and_what_is_by_construction(tmp_path):
    go("otc", tmp_path, Fake(otc_rows), (42, 7))
    miniature = methods.named("otc")
    page = (tmp_path / "otc" / "index.html").read_text()
    assert re.search(r"<strong>[\w ]* 2 \w+ 2 \w+</strong>", page)
    assert miniature.claim in page and miniature.by_construction and miniature.by_construction in page
    assert (
        page.count("data:image/png;base64,") == 1 and (tmp_path / "otc" / "curves.png").read_bytes()[:4] == b"\x89PNG"
    )
    assert page.count("<td>otc_grpo</td>") == 2 and all(f"<th>{column}</th>" in page for column in miniature.columns)


@pytest.mark.slow
def test_a_sweep_is_drawn_by_n(tmp_path):
    go("interaction_scaling", tmp_path, Fake(sweep={0: 0.04, 2: 0.5, 4: 0.93, 20: 0.93}))
    assert (tmp_path / "interaction_scaling/curves.png").read_bytes()[:4] == b"\x89PNG"
