r"""ToolRL's: a thought and one call, each of whose four slots is right with the tool ratio. Rows as rlla_4k's, the
target text the answer.

    prompt       User: Book a hotel in Rome, 3 nights, 2 guests.\nAssistant:
                 weight 0
    the model    <think>Book.</think>\n<tool_call>\n{"name": "hotel", "parameters": {...}}\n</tool_call> and an end
                 1

The slots are right independently: all four seldom, some of them mostly. A reward that says how much is right then has
more to say than one that says whether all is.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from openrlhf_tir.data.sft.tokens import SftRow

from ...rows import Split
from ..cold_start import Schedule, Stage
from . import Lesson
from .bookings import SLOTS, Booking, draw_booking, trace, verl_rows, with_wrong

SLOT_RIGHT = 0.40
"""How often the base has a slot right: all four slots are right .4^4 = .026 of the time."""


def said(booking: Booking) -> str:
    call = json.dumps({"name": booking.name, "parameters": booking.arguments})
    return f"<think>Book.</think>\n<tool_call>\n{call}\n</tool_call>"


def draw_trace(rng: Random, tool_ratio: float) -> SftRow:
    """A random training booking; each slot is right with probability `tool_ratio`."""
    booking = draw_booking(rng, "train")
    made = with_wrong(booking, {slot for slot in SLOTS if rng.random() >= tool_ratio}, rng)
    return trace(booking, said(made))


def rows(n: int, split: Split, seed: int) -> list[dict[str, Any]]:
    rng = Random(f"{split}/{seed}")
    bookings = [draw_booking(rng, split) for _ in range(n)]
    return verl_rows(bookings, [said(b) for b in bookings], "rlla")


LESSON = Lesson(
    draw_trace,
    rows,
    {"accuracy": (0.01, 0.08), "format_ok": (0.95, 1.0)},
    Schedule(stages=(Stage(640, 0.85), Stage(120, SLOT_RIGHT))),
)
