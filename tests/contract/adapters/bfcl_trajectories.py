"""Trajectories over the package's own rows, true and perturbed: what both graders, its and ours, are asked about."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from env_servers.adapters.bfcl.make_tasks import package_file
from env_servers.adapters.bfcl.package import ANSWERS
from env_servers.adapters.bfcl.task import Call, parse_call

KINDS = (
    "gold", "merge", "drop", "empty", "repeat", "swap", "early", "unknown", "argument", "no such argument", "other",
)  # fmt: skip
Turns = list[list[list[Call]]]


class Row(NamedTuple):
    """`entry` is the package's, `gold` its true calls as text, by turn."""

    entry: dict[str, Any]
    gold: list[list[str]]

    @property
    def calls(self) -> list[list[Call]]:
        return [[parse_call(text) for text in turn] for turn in self.gold]


def rows(category: str) -> Iterator[Row]:
    path = package_file(category)
    for entry, answer in zip(_lines(path), _lines(path.parent / ANSWERS / path.name), strict=True):
        assert entry["id"] == answer["id"]
        yield Row(entry, answer["ground_truth"])


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as f:
        yield from map(json.loads, f)


def as_text(call: Call) -> str:
    """In Python's notation, as the package's evaluation reads it."""
    return f"{call.name}({', '.join([*map(repr, call.values), *(f'{k}={v!r}' for k, v in call.arguments.items())])})"


def trajectory(gold: list[list[Call]], kind: str, rng: random.Random) -> Turns:
    """The true calls, one a step, with one thing otherwise."""
    turns = [[[c] for c in turn] for turn in gold]
    full = [i for i, turn in enumerate(turns) if turn]
    if kind == "gold" or not full:
        return turns
    i = rng.choice(full)
    j = rng.randrange(len(turns[i]))
    turn, call = turns[i], turns[i][j][0]
    match kind:
        case "merge":
            turns[i] = [[c for step in turn for c in step]]
        case "drop":
            turn.pop(j)
        case "empty":
            turn.clear()
        case "repeat":
            turn.insert(j, [call])
        case "swap":
            rng.shuffle(turn)
        case "early" if i:
            turns[i - 1].append(turn.pop(j))
        case "unknown":
            turn.insert(j, [Call("fly", (), {"x": 1})])
        case "argument" if call.arguments:
            name = rng.choice(list(call.arguments))
            turn[j] = [call._replace(arguments={**call.arguments, name: _otherwise(call.arguments[name])})]
        case "no such argument":
            turn[j] = [call._replace(arguments={**call.arguments, "zzz": 1})]
        case "other":
            turn.append(rng.choice(turns[rng.choice(full)]))
    return turns


def _otherwise(value: Any) -> Any:
    return value + 1 if isinstance(value, int | float) and not isinstance(value, bool) else f"{value}x"
