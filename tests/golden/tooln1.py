"""Rows of tooln1.jsonl: all six variants of Tool-N1's score of one response. Where the official code crashes, nothing
is compared."""

from __future__ import annotations

from openrlhf_tir.rewards.tooln1 import VARIANTS, score

from ._compare import mismatches


def check(row: dict, compat: bool) -> list[str] | None:
    got = {name: score(row["response"], row["ground_truth"], name) for name in VARIANTS}
    return mismatches(got, {k: v for k, v in row["expected"].items() if not isinstance(v, dict)})
