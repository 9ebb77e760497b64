"""Bad rows: what becomes of a row that cannot be used. A reader hands its error to a `Bad`, which raises it, or takes
note and lets it go on.

refuse      raises: the first bad row ends the reading
BadRows     as data.on_bad_row says: the same, or the rows are left out, counted and listed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..config.paths import shorten
from ..errors import DataError

Bad = Callable[[DataError], None]
MOST_LISTED = 10
"""Bad rows that are told one by one; the others are counted. `openrlhf-tir data check` lists them all."""


def refuse(error: DataError) -> None:
    raise error


class BadRows:
    """`on`: data.on_bad_row, "error" or "skip". `listed`: what was wrong with the first `most` of them."""

    def __init__(self, on: str = "error", most: int = MOST_LISTED) -> None:
        self.on, self.most = on, most
        self.count = 0
        self.listed: list[str] = []

    def __call__(self, error: DataError, rows: int = 1) -> None:
        """Raise the error, or take note of it. `rows`: how many rows there are of what is wrong."""
        if self.on == "error":
            raise error
        self.count += rows
        if len(self.listed) < self.most:
            self.listed.append(shorten(str(error), 500))

    def check_some_good(self, good: int, datasets: Sequence[str]) -> None:
        """Raises DataError where every row was bad: then it is not the rows that are wrong, but how they are read."""
        if self.count and not good:
            raise DataError(
                f"None of the {self.count} rows of {', '.join(datasets)} can be used. The first: {self.listed[0]}"
            )

    def facts(self) -> list[str]:
        """A line with the number, and one for each row that is listed; nothing where all were good."""
        if not self.count:
            return []
        more = (
            f", {len(self.listed)} of them listed (openrlhf-tir data check lists all)"
            if self.count > len(self.listed)
            else ""
        )
        return [
            f"{self.count} bad rows are left out (data.on_bad_row = skip){more}",
            *(f"left out: {line}" for line in self.listed),
        ]
