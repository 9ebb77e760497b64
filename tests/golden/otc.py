"""Rows of otc.jsonl (derived from the paper's formulas): PPO factor, GRPO group, and the metrics."""

from __future__ import annotations

from collections.abc import Sequence

from openrlhf_tir.rewards import otc

from ._compare import mismatches


def check(row: dict, compat: bool) -> list[str] | None:
    kind = KINDS.get(row["kind"])
    return kind(row) if kind else None


def _single(row: dict) -> list[str]:
    factor = otc.ppo_factor(row["m"], row["c"])
    return mismatches({"r_tool": factor, "reward": row["alpha"] * factor * row["correct"]}, row["expected"])


def _group(row: dict) -> list[str]:
    got = otc.grpo_group(row["m"], row["correct"], row["r_phi"], row["c"], row["alpha"], row["stored_optimal_n"])
    return mismatches({**got._asdict(), "new_stored_optimal_n": got.n}, row["expected"])


def _productivity(correct: Sequence[float], calls: Sequence[int]) -> dict[str, float | None]:
    """Return the paper's metrics: EM, calls per question (TC) and correct answers per call (TP; None without calls)."""
    return {
        "EM": sum(correct) / len(correct),
        "TC": sum(calls) / len(calls),
        "TP": sum(correct) / sum(calls) if sum(calls) else None,
    }


KINDS = {
    "otc_ppo_single": _single,
    "otc_grpo_group": _group,
    "metrics": lambda row: mismatches(_productivity(row["correct"], row["calls"]), row["expected"]),
}
