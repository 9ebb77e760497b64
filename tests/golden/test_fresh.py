"""Rows that were made by running the official functions on mutated inputs: all of them hold.

They were made once, with code that is not here; `python -m tests.golden tests/golden/fresh/*.jsonl` replays them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.__main__ import replay

FRESH = sorted((Path(__file__).parent / "fresh").glob("*.jsonl"))


@pytest.mark.parametrize("path", FRESH, ids=lambda path: path.stem)
def test_every_row_of_the_official_functions_holds(path):
    tally = replay(path, compat=False)
    assert (tally["failed"], tally["skipped"]) == (0, 0) and tally["passed"] >= 40
