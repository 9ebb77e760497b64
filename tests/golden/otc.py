"""Rows of otc.jsonl (derived from the paper's formulas): PPO factor, GRPO group, and the metrics."""

from __future__ import annotations

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


KINDS = {
    "otc_ppo_single": _single,
    "otc_grpo_group": _group,
    "metrics": lambda row: mismatches(otc.productivity(row["correct"], row["calls"]), row["expected"]),
}
