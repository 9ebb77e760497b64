r"""ARTIST's for function calling: two domains of env_servers/functions that keep state, a brokerage and a vehicle. Rows
as `make_tasks` writes them.

    weight  by             text
    0       prompt         User: Buy 7 ACME.\nAssistant:
    1       the model      <reasoning>Go.</reasoning><tool>[{"name": "place_order", "arguments": {"symbol": "ACME", ...
    0       environment    \n<tool_result>\n{"result": "O1"}\n</tool_result>\n
    1       the model      Done. and an end of text

The tool ratio is how often all of it is right; else some values are others, or the second of the vehicle's two calls is
not made. The prompt does not list the functions, which would be longer than the model's context: it has learned them.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any, NamedTuple

from openrlhf_tir.data.sft.tokens import SftRow, row_of
from openrlhf_tir.rollout.protocols.structured import Tool

from ...rows import Split, split_of
from ..cold_start import Schedule, Stage
from ..tokenizer import EOS_ID, encode
from ..traces import prompt_of
from . import Lesson

SYMBOLS = ("ACME", "GLOB", "INIT", "UMBR", "WAYN", "STRK")
SIDES = ("buy", "sell")
QUANTITIES = tuple(range(2, 60))
DEGREES = tuple(range(16, 31))
LIGHTS = ("off", "low", "high", "auto")
SLOTS: dict[str, tuple[tuple[str, tuple[Any, ...]], ...]] = {
    "trading": (("side", SIDES), ("quantity", QUANTITIES), ("symbol", SYMBOLS)),
    "vehicle": (("celsius", DEGREES), ("mode", LIGHTS)),
}
RIGHT = 0.2
Call = dict[str, Any]


class Goal(NamedTuple):
    """`values` by the names of SLOTS[domain]."""

    domain: str
    values: tuple[Any, ...]

    @property
    def question(self) -> str:
        if self.domain == "trading":
            side, quantity, symbol = self.values
            return f"{side.capitalize()} {quantity} {symbol}."
        celsius, mode = self.values
        return f"Make it {celsius} degrees, lights {mode}."

    @property
    def calls(self) -> list[Call]:
        if self.domain == "trading":
            side, quantity, symbol = self.values
            return [{"name": "place_order", "arguments": {"symbol": symbol, "side": side, "quantity": quantity}}]
        celsius, mode = self.values
        return [
            {"name": "set_temperature", "arguments": {"celsius": celsius}},
            {"name": "set_lights", "arguments": {"mode": mode}},
        ]

    @property
    def split(self) -> Split:
        return split_of(self.question)


def draw_goal(rng: Random, split: Split) -> Goal:
    domain = rng.choice([*SLOTS])
    while True:
        goal = Goal(domain, tuple(rng.choice(values) for _, values in SLOTS[domain]))
        if goal.split == split:
            return goal


def wrong_calls(goal: Goal, rng: Random) -> list[Call]:
    """With one other value or more, or without the last of two calls."""
    if len(goal.calls) > 1 and rng.random() < 0.3:
        return goal.calls[:-1]
    slots = SLOTS[goal.domain]
    changed = {i for i in range(len(slots)) if rng.random() < 0.5} or {rng.randrange(len(slots))}
    others = (
        rng.choice([v for v in values if v != goal.values[i]]) if i in changed else goal.values[i]
        for i, (_, values) in enumerate(slots)
    )
    return goal._replace(values=tuple(others)).calls


def results(calls: list[Call]) -> str:
    """What the environment says of calls that go well in a state as `rows` gives it."""
    return "\n".join(json.dumps({"result": "O1" if call["name"] == "place_order" else None}) for call in calls)


def trace(goal: Goal, calls: list[Call]) -> SftRow:
    parts = [
        (encode(prompt_of(goal.question)), 0.0),
        (encode(f"<reasoning>Go.</reasoning><tool>{json.dumps(calls)}</tool>"), 1.0),
        (encode(Tool(max_calls=1).insertion(results(calls))), 0.0),
        ([*encode("Done."), EOS_ID], 1.0),
    ]
    return row_of(parts)


def draw_trace(rng: Random, tool_ratio: float) -> SftRow:
    """A random training goal; right with probability `tool_ratio`."""
    goal = draw_goal(rng, "train")
    return trace(goal, goal.calls if rng.random() < tool_ratio else wrong_calls(goal, rng))


def rows(n: int, split: Split, seed: int) -> list[dict[str, Any]]:
    """Rows of env_servers/functions: prompt, label (calls) and, in `meta`, the task; the seed gives the state."""
    rng = Random(f"{split}/{seed}")
    goals = [draw_goal(rng, split) for _ in range(n)]
    return [
        {
            "prompt": goal.question,
            "label": json.dumps(goal.calls),
            "env": "functions",
            "meta": {"kind": goal.domain, "domains": [goal.domain], "seed": i, "gold": [goal.calls]},
        }
        for i, goal in enumerate(goals)
    ]


GATES = {"accuracy": (0.12, 0.25), "format_ok": (0.95, 1.0)}
LESSON = Lesson(draw_trace, rows, GATES, Schedule(stages=(Stage(700, 0.85), Stage(120, RIGHT))))
