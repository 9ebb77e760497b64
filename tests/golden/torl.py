"""Rows of torl.jsonl: ToRL's score of a response, default and v2.wformat, by the reference's own equivalence test.

The unmarked rows contain false verdicts of that test as well (sqrt 8 is not 2 sqrt 2 there), so all are held against
it."""

from __future__ import annotations

from openrlhf_tir.rewards.torl import official_verdict, reward_of

from ._compare import mismatches


def check(row: dict, compat: bool) -> list[str] | None:
    boxed, correct = official_verdict(row["solution_str"], row["ground_truth"])
    got = {"default": reward_of(boxed, correct), "v2.wformat": reward_of(boxed, correct, wformat=True)}
    return mismatches(got, row.get("expected_math_verify_0_9_0", row["expected"]))
