"""Accuracies of BFCL V3's groups, from those of its categories. Source: gorilla, bfcl_eval's leaderboard.

    non_live    unweighted mean of simple, multiple, parallel, parallel_multiple, AST only. Tool-N1 (arXiv 2505.00024)
                reports this and live
    live        mean of the live categories, weighted by their number of problems
    mean        mean of both, as in Tool-N1's tables

The leaderboard's overall accuracy also needs multi-turn and executed categories, which are not evaluated here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NON_LIVE = ("bfcl_simple", "bfcl_multiple", "bfcl_parallel", "bfcl_parallel_multiple")
LIVE = ("bfcl_live_simple", "bfcl_live_multiple", "bfcl_live_parallel", "bfcl_live_parallel_multiple")


def bfcl_groups(figures_of: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the accuracy of each group all of whose categories were evaluated.

    Args:
        figures_of: Suite -> its figures.
    """
    accuracy = {}
    for name, figures in figures_of.items():
        value = figures[f"avg@{figures['n']}"][0]
        if value is not None:
            accuracy[name] = value
    groups = {}
    if all(name in accuracy for name in NON_LIVE):
        groups["bfcl_non_live"] = sum(accuracy[name] for name in NON_LIVE) / len(NON_LIVE)
    if all(name in accuracy for name in LIVE):
        problems = {name: figures_of[name]["problems"] for name in LIVE}
        groups["bfcl_live"] = sum(accuracy[name] * problems[name] for name in LIVE) / sum(problems.values())
    if len(groups) == 2:
        groups["bfcl_mean"] = (groups["bfcl_non_live"] + groups["bfcl_live"]) / 2
    return groups
