"""The page on evaluation has the sets, figures and columns of the program, no more and no fewer."""

from __future__ import annotations

import re

from openrlhf_tir.evaluation.items import LISTS
from openrlhf_tir.evaluation.scores.env_signals import FIGURES
from openrlhf_tir.evaluation.scores.tool_use import tool_use
from openrlhf_tir.evaluation.settings import SWEPT
from openrlhf_tir.evaluation.suites import SUITES

from .docs_blocks import DOCS

PAGE = (DOCS / "evaluation.md").read_text()


def section(name: str) -> str:
    return PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def test_the_table_of_sets_is_the_registry():
    rows = re.findall(r"^\| ([^|]*`[^|]+) \| ([^|]+) \|", section("Sets"), re.MULTILINE)
    named = [(name, n, source) for names, source in rows for name, n in re.findall(r"`(\w+)` \((\d+|any)\)", names)]
    assert {name: 0 if n == "any" else int(n) for name, n, _ in named} == {s.name: s.rows for s in SUITES.values()}
    for name, _, source in named:
        assert any(part in SUITES[name].source for part in re.split(" or |, ", source)), name


def test_the_figures_are_those_that_are_told():
    named = {
        n
        for line in re.findall(r"^\| (`.*?) \|", section("Figures"), re.MULTILINE)
        for n in re.findall(r"`([^`]+)`", line)
    }
    assert named == {*tool_use([]), *FIGURES, "avg@n", "pass@k", "pass^k", "maj@k"}


def test_the_columns_of_an_item_and_what_can_be_swept_are_named():
    assert all(f"`{name}`" in section("Items") for name in LISTS) and all(f"`{key}`" in PAGE for key in SWEPT)
