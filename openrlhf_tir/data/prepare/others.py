"""Rows that no run reads directly: `data convert` turns them into rows that a run reads, or they train a cold start
elsewhere.

xlam, hammer, toolace   function_calls.py
retool_sft              {"messages": [chat messages, the last one the assistant's], "tools": optional}
                        ReTool's cold start
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from ...config import Data
from ...errors import DataError
from .. import checks, tool_n1
from ..bad_rows import Bad
from ..fields import field, kind
from ..rows import read_rows
from . import function_calls


def retool_sft(where: str, row: Mapping[str, Any], left_out: Counter[str]) -> int:
    """Check a row of ReTool's cold start; it is one example."""
    messages = field(where, row, "messages", list, "a list of chat messages")
    checks.messages(messages, where, "messages")
    if not messages or messages[-1]["role"] != "assistant":
        raise DataError(
            f"{where}: messages is {kind(messages)}, whose last one is not the assistant's:"
            " there is nothing to learn. Correct or remove the row."
        )
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            checks.learnable(message, where, f"messages[{i}]")
    return 1


def _calls(schema: str) -> Callable[[str, Mapping[str, Any], Counter[str]], int]:
    def read(where: str, row: Mapping[str, Any], left_out: Counter[str]) -> int:
        return sum(1 for raw in function_calls.SOURCES[schema](where, row, left_out) if tool_n1.convert(where, raw))

    return read


OTHERS = {"retool_sft": retool_sft, **{schema: _calls(schema) for schema in function_calls.SOURCES}}
"""Schema -> a function that returns the number of examples in a row, and raises DataError for a malformed row."""


def check_other(cfg: Data, bad: Bad, tick: Callable[[], None]) -> tuple[int, list[str]]:
    """Return the number of good rows, and lines about them."""
    read = OTHERS[str(cfg.row_schema)]
    rows = examples = 0
    left_out: Counter[str] = Counter()
    for source in cfg.datasets:
        for where, row in islice(read_rows(source, cfg.prompt_split, bad), cfg.max_samples):
            try:
                examples += read(where, row, left_out)
            except DataError as error:
                bad(error)
            else:
                rows += 1
            tick()
    facts = [f"{examples} examples"] if cfg.row_schema != "retool_sft" else []
    return rows, facts + [f"{count} that the method leaves out: {reason}" for reason, count in left_out.most_common()]
