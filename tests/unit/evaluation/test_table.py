"""What the command prints and writes: one row per set and value, BFCL's groups only with all their categories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from rich.console import Console

from openrlhf_tir.config import Config
from openrlhf_tir.evaluation.plan import Plan
from openrlhf_tir.evaluation.scores.figures import figures
from openrlhf_tir.evaluation.scores.groups import LIVE, NON_LIVE, bfcl_groups
from openrlhf_tir.evaluation.table import as_json, table

from .test_scores import ITEMS, item


@dataclass
class Result:
    name: str
    setting: float | None
    figures: dict[str, Any]


def shown(plan: Plan, *results: Result) -> str:
    console = Console(width=200)
    with console.capture() as text:
        console.print(table(plan, results))
    return text.get()


PLAN = Plan(Config(actor={"model_name_or_path": "m"}), [], [])
SWEEP = Plan(PLAN.cfg, [], [], "env.max_calls")


def test_a_set_has_a_row_with_its_intervals():
    text = shown(PLAN, Result("aime24", None, figures(ITEMS, 4)))
    row = next(line for line in text.splitlines() if "aime24" in line)
    assert "25.0 [0.0, 50.0]" in row and "0.88" in row and "0.29" in row


def test_names_are_shown_as_they_are():
    plan = Plan(Config(actor={"model_name_or_path": "/m[/b]"}), [], [])
    text = shown(plan, Result("own[/red]", None, figures(ITEMS, 4)))
    assert "/m[/b]" in text and "own[/red]" in text


def test_what_has_no_figure_is_a_dash():
    row = next(
        line
        for line in shown(PLAN, Result("amc23", None, figures([item(0, [1, 0], [0, 0])], 2))).splitlines()
        if "amc23" in line
    )
    assert row.split("│")[8].strip() == "-", "no call, no productivity"


def test_a_sweep_is_told_by_value():
    results = [Result("aime24", value, figures(ITEMS, 4)) for value in (0.0, 20.0)]
    out = as_json(SWEEP, results)
    assert out["swept"] == "env.max_calls" and list(out["suites"]["aime24"]) == ["0", "20"] and "groups" not in out
    assert shown(SWEEP, *results).count("aime24") == 2 and "env.max_calls" in shown(SWEEP, *results)


def category(accuracy: float, problems: int) -> dict[str, Any]:
    return {"n": 1, "problems": problems, "avg@1": [accuracy, 0.0, 1.0]}


def test_bfcls_groups_by_hand():
    """Non-live: (1 + 1 + .5 + .5) / 4. Live: (.5 * 3 + 1 * 1 + 0 + 0) / 10."""
    found = dict(zip(NON_LIVE, (category(a, 1) for a in (1.0, 1.0, 0.5, 0.5)), strict=True))
    assert bfcl_groups(found) == {"bfcl_non_live": 0.75}
    found |= dict(zip(LIVE, (category(a, n) for a, n in ((0.5, 3), (1.0, 1), (0.0, 2), (0.0, 4))), strict=True))
    assert bfcl_groups(found) == pytest.approx({"bfcl_non_live": 0.75, "bfcl_live": 0.25, "bfcl_mean": 0.5})
    del found["bfcl_simple"]
    assert list(bfcl_groups(found)) == ["bfcl_live"]
