"""Selection: outcomes of rows -> which rows are kept, by pass rate or learning impact, and how many of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..identity import row_id
from ..prompts import Problem
from .decontaminate import asked
from .learning_impact import learning_impact
from .outcomes import Outcome

BINS = 10
WIDTH = 40
"""Characters of the longest bar."""


class Selection:
    """Looks at the problems in their order; then says which are kept, by their places in it."""

    def __init__(
        self,
        outcomes: Mapping[str, Outcome],
        pass_rate: Sequence[float] | None,
        impact: float | None,
        min_samples: int,
        keep_unsampled: bool,
    ) -> None:
        self.outcomes, self.pass_rate, self.impact = outcomes, pass_rate, impact
        self.min_samples, self.keep_unsampled = min_samples, keep_unsampled
        self.rows = 0
        self.most_samples = 0
        """Samples of the row that has most."""
        self._of: dict[int, str] = {}
        """Place of a row -> its key in the outcomes."""
        self._scores: dict[str, float] = {}

    @property
    def sampled(self) -> int:
        return len(self._of)

    def look(self, p: Problem) -> None:
        keys = (row_id(p.input, p.label), asked(p.input).strip())
        key = next((k for k in keys if k in self.outcomes), None)
        if key is not None:
            self.most_samples = max(self.most_samples, self.outcomes[key].total)
            if self.outcomes[key].total >= self.min_samples:
                self._of[self.rows] = key
        self.rows += 1

    def kept(self, top: int | None = None) -> set[int]:
        """Places of the rows that stay. Raises DataError where learning impact cannot be told."""
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
        """How many rows were sampled, and their pass rates, or scores, as bars."""
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
