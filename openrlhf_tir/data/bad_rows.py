"""What happens to a row that cannot be used. A reader passes its error to a `Bad`, which raises it or records it.

refuse      raises it, so the first bad row ends the reading
BadRows     does as data.on_bad_row says: the same, or the rows are left out, counted and listed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..config.paths import shorten
from ..errors import DataError

Bad = Callable[[DataError], None]
"""Called with the error of a bad row. It raises the error, or returns and the row is left out."""
MOST_LISTED = 10
"""Bad rows that are listed; the others are counted. `openrlhf-tir data check` lists all of them."""


def refuse(error: DataError) -> None:
    """Raise the error."""
    raise error


class BadRows:
    """Raises or counts bad rows.

    Args:
        on: data.on_bad_row, "error" or "skip".
        most: Number of rows that are listed.

    Attributes:
        count: Number of bad rows.
        listed: What was wrong with the first of them.
    """

    def __init__(self, on: str = "error", most: int = MOST_LISTED) -> None:
        self.on = on
        self.most = most
        self.count = 0
        self.listed: list[str] = []

    def __call__(self, error: DataError, rows: int = 1) -> None:
        """Raise the error, or record it for `rows` rows."""
        if self.on == "error":
            raise error
        self.count += rows
        if len(self.listed) < self.most:
            self.listed.append(shorten(str(error), 500))

    def add(self, count: int, listed: Sequence[str]) -> None:
        """Record the bad rows that another BadRows has counted and listed."""
        self.count += count
        self.listed += listed[: self.most - len(self.listed)]

    def check_some_good(self, good: int, datasets: Sequence[str]) -> None:
        """Check that at least one row was good. If none was, the rows are read in a wrong way.

        Raises:
            DataError: Every row was bad.
        """
        if self.count and not good:
            raise DataError(
                f"None of the {self.count} rows of {', '.join(datasets)} can be used. The first: {self.listed[0]}"
            )

    def facts(self) -> list[str]:
        """Return a line with the number of bad rows, and one for each row that is listed; [] if there are none."""
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
