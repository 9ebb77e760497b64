"""Summary: the problems of one data set -> what it holds, and what is odd about it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ..identity import row_id
from ..prompts import Problem

MOST_NAMED = 3
"""Contradictions that are named with their places."""


@dataclass(slots=True)
class Summary:
    """Fed with problems by `add`; memory holds a short name of each."""

    rows: int = 0
    repeated: int = 0
    """Rows with input and label of an earlier one."""
    contradictory: list[tuple[str, str]] = field(default_factory=list)
    """Places of rows with an earlier one's input and another label, and of that row."""
    envs: Counter[str] = field(default_factory=Counter)
    input_chars: list[int] = field(default_factory=list)
    label_chars: list[int] = field(default_factory=list)
    _seen: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, p: Problem) -> None:
        self.rows += 1
        self.envs[p.env or "(none named)"] += 1
        self.input_chars.append(chars(p.input))
        self.label_chars.append(len(p.label))
        name, whole = row_id(p.input, ""), row_id(p.input, p.label)
        first, where = self._seen.setdefault(name, (whole, p.where))
        if where == p.where:
            return
        if first == whole:
            self.repeated += 1
        else:
            self.contradictory.append((p.where, where))

    def facts(self) -> list[str]:
        """Lines for a person."""
        if not self.rows:
            return []
        lines = [f"input of {spread(self.input_chars)} characters, label of {spread(self.label_chars)}"]
        if len(self.envs) > 1 or "(none named)" not in self.envs:
            lines.append("environments: " + ", ".join(f"{name} {n}" for name, n in sorted(self.envs.items())))
        if self.repeated:
            lines.append(f"{self.repeated} rows repeat an earlier one")
        if self.contradictory:
            named = "; ".join(f"{here} and {there}" for here, there in self.contradictory[:MOST_NAMED])
            lines.append(f"{len(self.contradictory)} rows have the input of an earlier one and another label: {named}")
        return lines


def chars(given: Any) -> int:
    """Characters of an input: its text, or that of its messages."""
    return (
        len(given)
        if isinstance(given, str)
        else sum(len(c if isinstance(c := m.get("content"), str) else json.dumps(m)) for m in given)
    )


def spread(values: list[int]) -> str:
    """Smallest, median and largest."""
    ordered = sorted(values)
    low, middle, high = ordered[0], ordered[len(ordered) // 2], ordered[-1]
    return f"{low:,}" if low == high else f"{low:,} to {high:,} (median {middle:,})"
