"""Summarise the problems of one data set: what it holds, and what is odd about it."""

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
    """Summary of the problems that are added.

    Attributes:
        rows: Number of rows.
        repeated: Rows with input and label of an earlier row.
        contradictory: Places of rows with an earlier row's input and another label, and of that row.
        envs: Rows by environment.
        input_chars: Length of each input.
        label_chars: Length of each label.
    """

    rows: int = 0
    repeated: int = 0
    contradictory: list[tuple[str, str]] = field(default_factory=list)
    envs: Counter[str] = field(default_factory=Counter)
    input_chars: list[int] = field(default_factory=list)
    label_chars: list[int] = field(default_factory=list)
    _seen: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, problem: Problem) -> None:
        """Add a problem."""
        self.rows += 1
        self.envs[problem.env or "(none named)"] += 1
        self.input_chars.append(chars(problem.input))
        self.label_chars.append(len(problem.label))
        name, row_name = row_id(problem.input, ""), row_id(problem.input, problem.label)
        first, where = self._seen.setdefault(name, (row_name, problem.where))
        if where == problem.where:
            return
        if first == row_name:
            self.repeated += 1
        else:
            self.contradictory.append((problem.where, where))

    def facts(self) -> list[str]:
        """Return lines for a person."""
        if not self.rows:
            return []
        lines = [f"input of {spread(self.input_chars)} characters, label of {spread(self.label_chars)}"]
        if len(self.envs) > 1 or "(none named)" not in self.envs:
            lines.append("environments: " + ", ".join(f"{name} {count}" for name, count in sorted(self.envs.items())))
        if self.repeated:
            lines.append(f"{self.repeated} rows repeat an earlier one")
        if self.contradictory:
            named = "; ".join(f"{here} and {there}" for here, there in self.contradictory[:MOST_NAMED])
            lines.append(f"{len(self.contradictory)} rows have the input of an earlier one and another label: {named}")
        return lines


def chars(given: Any) -> int:
    """Return the number of characters of an input: of its text, or of its messages."""
    if isinstance(given, str):
        return len(given)
    total = 0
    for message in given:
        content = message.get("content")
        total += len(content) if isinstance(content, str) else len(json.dumps(message))
    return total


def spread(values: list[int]) -> str:
    """Return smallest, median and largest value as text."""
    ordered = sorted(values)
    low, middle, high = ordered[0], ordered[len(ordered) // 2], ordered[-1]
    return f"{low:,}" if low == high else f"{low:,} to {high:,} (median {middle:,})"
