"""Augment Tool-N1's raw rows, with a seed. This is optional in its code and not behind its main result (name masking
0.67, irrelevance 0.15).

masked       the functions' names become meaningless words (Hammer, arXiv 2410.04587) in tools, history and calls
irrelevant   one more row with the tools of an earlier row: no function fits, and the answer is []
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterable, Iterator
from typing import Any

Raw = dict[str, Any]
WORD = string.ascii_letters + string.digits


def augmented(rows: Iterable[Raw], *, mask_names: float, irrelevant: float, seed: int) -> Iterator[Raw]:
    """Yield the rows, each masked with probability `mask_names`; after a share `irrelevant` also a copy that no
    function fits."""
    generator = random.Random(seed)
    earlier: list[Any] = []
    for row in rows:
        tools, answer = json.loads(row["tools"]), json.loads(row["answer"])
        names = {tool["name"] for tool in tools}
        yield masked(row, generator) if generator.random() < mask_names else row
        others = [tool for tool in earlier if tool["name"] not in names]
        if generator.random() < irrelevant and others and answer and len(json.loads(row["conversations"])) == 1:
            yield {**row, "tools": json.dumps(others, ensure_ascii=False), "answer": "[]"}
        earlier = tools


def masked(row: Raw, generator: random.Random) -> Raw:
    """Return a row with meaningless names of its functions."""
    tools = json.loads(row["tools"])
    words = {tool["name"]: "func_" + "".join(generator.choices(WORD, k=8)) for tool in tools}

    def renamed(calls: Any) -> Any:
        return [{**call, "name": words.get(call["name"], call["name"])} for call in calls]

    conversation = [
        {**turn, "value": renamed(turn["value"])} if turn["from"] == "function_call" else turn
        for turn in json.loads(row["conversations"])
    ]
    masked_row = {"tools": renamed(tools), "conversations": conversation, "answer": renamed(json.loads(row["answer"]))}
    return row | {name: json.dumps(value, ensure_ascii=False) for name, value in masked_row.items()}
