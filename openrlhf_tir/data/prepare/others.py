"""Rows that no run reads directly (function_calls.py): `data convert` turns them into rows that a run reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice

from ...config import Data
from ...errors import DataError
from .. import tool_n1
from ..bad_rows import Bad
from ..rows import read_rows
from . import function_calls


def check_other(cfg: Data, bad: Bad, tick: Callable[[], None]) -> tuple[int, list[str]]:
    """Return the number of good rows, and lines about them."""
    examples_of = function_calls.SOURCES[str(cfg.row_schema)]
    rows = examples = 0
    left_out: Counter[str] = Counter()
    for source in cfg.datasets:
        for where, row in islice(read_rows(source, cfg.prompt_split, bad), cfg.max_samples):
            try:
                examples += sum(1 for raw in examples_of(where, row, left_out) if tool_n1.convert(where, raw))
            except DataError as error:
                bad(error)
            else:
                rows += 1
            tick()
    reasons = [f"{count} that the method leaves out: {reason}" for reason, count in left_out.most_common()]
    return rows, [f"{examples} examples", *reasons]
