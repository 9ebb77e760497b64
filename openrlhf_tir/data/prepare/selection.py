"""Select rows by the outcomes of their samples: by pass rate or learning impact, and how many of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..identity import row_id
from ..prompts import Problem
from .decontaminate import question_of
from .learning_impact import learning_impact
from .outcomes import Outcome

BINS = 10
"""Bins of the printed histogram."""
WIDTH = 40
"""Characters of the longest bar."""


class Selection:
    """Examines the problems in their order, and then says which are kept, by their places in it.

    Args:
        outcomes: Name of a row -> its outcome.
        pass_rate: Keep rows between these rates; None for any.
        impact: Keep rows with this learning impact or more; None for any.
        min_samples: Rows with fewer samples count as not sampled.
        keep_unsampled: Whether rows without samples are kept.
    """

    def __init__(
        self,
        outcomes: Mapping[str, Outcome],
        pass_rate: Sequence[float] | None,
        impact: float | None,
        min_samples: int,
        keep_unsampled: bool,
    ) -> None:
        self.outcomes = outcomes
        self.pass_rate = pass_rate
        self.impact = impact
        self.min_samples = min_samples
        self.keep_unsampled = keep_unsampled
        self.rows = 0
        self.most_samples = 0
        """Samples of the row that has most."""
        self._of: dict[int, str] = {}
        """Place of a row -> its name in the outcomes."""
        self._scores: dict[str, float] = {}

    @property
    def sampled(self) -> int:
        """Number of rows that have enough samples."""
        return len(self._of)

    def look(self, p: Problem) -> None:
        """Examine the next problem."""
        keys = (row_id(p.input, p.label), question_of(p.input).strip())
        key = next((k for k in keys if k in self.outcomes), None)
        if key is not None:
            self.most_samples = max(self.most_samples, self.outcomes[key].total)
            if self.outcomes[key].total >= self.min_samples:
                self._of[self.rows] = key
        self.rows += 1

    def kept_places(self, top: int | None = None) -> set[int]:
        """Return the places of the rows that are kept. Raises DataError if there is no learning impact."""
        chosen = dict(self._of)
        if self.pass_rate is not None:
            low, high = self.pass_rate
            chosen = {i: k for i, k in chosen.items() if low <= self.outcomes[k].pass_rate <= high}
        if self.impact is not None:
            self._scores = learning_impact(self.outcomes)
            chosen = {i: k for i, k in chosen.items() if self._scores.get(k, -float("inf")) >= self.impact}
        best = sorted(chosen, key=lambda i: (-self._worth(chosen[i]), i))[:top]
        unsampled = set(range(self.rows)) - set(self._of) if self.keep_unsampled else set()
        return set(best) | unsampled

    def _worth(self, key: str) -> float:
        return self._scores[key] if self.impact is not None else -abs(self.outcomes[key].pass_rate - 0.5)

    def facts(self) -> list[str]:
        """Return how many rows were sampled, and their pass rates or scores as bars."""
        keys = set(self._of.values())
        if self.impact is None:
            what, values = "pass rate", [self.outcomes[k].pass_rate for k in keys]
        else:
            what, values = "learning impact", [self._scores[k] for k in keys if k in self._scores]
        lines = [f"  {len(self._of)} rows were sampled, {self.rows - len(self._of)} not; {what}:"]
        counts = Counter(min(BINS - 1, max(0, int(v * BINS))) for v in values)
        longest = max(counts.values(), default=1)
        for b in range(BINS):
            below = "less" if b == 0 and self.impact is not None else f"{b / BINS:.1f}"
            bar = "#" * round(WIDTH * counts[b] / longest)
            lines.append(f"  {below:>5} to {(b + 1) / BINS:.1f} {counts[b]:8d} {bar}".rstrip())
        if len(values) < len(keys):
            lines.append(f"  {len(keys) - len(values)} rows have no score: they were not sampled in the last epoch")
        return lines
