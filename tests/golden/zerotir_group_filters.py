"""Rows of zerotir_group_filters.jsonl: groups that survive length filter, length balance and accuracy ranges."""

from __future__ import annotations

from openrlhf_tir.filters.accuracy_range import range_violation
from openrlhf_tir.filters.length_gap import gap
from openrlhf_tir.filters.zerotir import length_balance

from ._compare import mismatches

MAX_GAP = 1000


def check(row: dict, compat: bool) -> list[str] | None:
    groups = row["groups"]
    ranges = {name: tuple(map(float, name.split("-"))) for name in row["expected"]["accuracy_range_keeps"]}
    gaps = {k: gap([length for length, _ in g], [correct for _, correct in g]) for k, g in groups.items()}
    got = {
        "length_filter_keeps": sorted(k for k, group_gap in gaps.items() if group_gap < MAX_GAP),
        "length_balance_keeps": sorted(length_balance(groups)),
        "accuracy_range_keeps": {
            name: sorted(k for k, g in groups.items() if not range_violation([a for _, a in g], *r))
            for name, r in ranges.items()
        },
    }
    want = {k: v if isinstance(v, dict) else sorted(v) for k, v in row["expected"].items()}
    want["accuracy_range_keeps"] = {name: sorted(keys) for name, keys in want["accuracy_range_keeps"].items()}
    return mismatches(got, want)
