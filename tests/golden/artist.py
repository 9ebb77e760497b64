"""Rows of artist.jsonl (derived from the paper's formulas): the summands of the maths and the function reward."""

from __future__ import annotations

from openrlhf_tir.rewards import artist

from ._compare import mismatches


def check(row: dict, compat: bool) -> list[str] | None:
    if row["kind"] == "math":
        parts = artist.math_parts(row["rollout"], row["ground_truth"], row["tool_success"], row["tool_total"])
    elif row["kind"] == "function_calling":
        parts = artist.function_parts(row["rollout"], row)
    else:
        return None
    return mismatches({**parts, "total": sum(parts.values())}, row["expected"])
