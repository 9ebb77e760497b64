"""Groups: BFCL V3's accuracies of categories -> those of its groups. Source: gorilla, bfcl_eval's leaderboard.

    non_live    unweighted mean of simple, multiple, parallel, parallel_multiple, AST only; Tool-N1 (arXiv 2505.00024)
                tells this and live
    live        mean of the live categories, weighted by their problems
    mean        of both, as Tool-N1's tables
The leaderboard's overall needs multi-turn and executed categories besides, which are not evaluated here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NON_LIVE = ("bfcl_simple", "bfcl_multiple", "bfcl_parallel", "bfcl_parallel_multiple")
LIVE = ("bfcl_live_simple", "bfcl_live_multiple", "bfcl_live_parallel", "bfcl_live_parallel_multiple")


def bfcl_groups(figures_of: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Only the groups whose categories are all there, with a figure each."""
    out = {}
    accuracy = {name: f[f"avg@{f['n']}"][0] for name, f in figures_of.items() if f[f"avg@{f['n']}"][0] is not None}
    if all(name in accuracy for name in NON_LIVE):
        out["bfcl_non_live"] = sum(accuracy[name] for name in NON_LIVE) / len(NON_LIVE)
    if all(name in accuracy for name in LIVE):
        problems = {name: figures_of[name]["problems"] for name in LIVE}
        out["bfcl_live"] = sum(accuracy[name] * problems[name] for name in LIVE) / sum(problems.values())
    if len(out) == 2:
        out["bfcl_mean"] = (out["bfcl_non_live"] + out["bfcl_live"]) / 2
    return out
