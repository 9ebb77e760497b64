r"""Tool-N1's: a thought and one call, right as a whole with the tool ratio. Rows as its own parquets', the true calls
the answer.

prompt       User: Book a hotel in Rome, 3 nights, 2 guests.\nAssistant:
             weight 0
the model    <think>Book.</think>\n<tool_call>[{"name": "hotel", "arguments": {...}}]</tool_call> and an end of text
             1
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

RIGHT = 0.2


def truth(booking: Booking) -> str:
    return json.dumps([{"name": booking.name, "arguments": booking.arguments}])


def said(booking: Booking) -> str:
    return f"<think>Book.</think>\n<tool_call>{truth(booking)}</tool_call>"


def draw_trace(rng: Random, tool_ratio: float) -> SftRow:
    """A random training booking; right with probability `tool_ratio`, else with one wrong slot or more."""
    booking = draw_booking(rng, "train")
    if rng.random() < tool_ratio:
        return trace(booking, said(booking))
    wrong = {slot for slot in SLOTS if rng.random() < 0.5} or {rng.choice([*SLOTS])}
    return trace(booking, said(with_wrong(booking, wrong, rng)))


def rows(n: int, split: Split, seed: int) -> list[dict[str, Any]]:
    rng = Random(f"{split}/{seed}")
    bookings = [draw_booking(rng, split) for _ in range(n)]
    return verl_rows(bookings, [truth(b) for b in bookings], "toolcall")


def examples(n: int, seed: int) -> list[dict[str, Any]]:
    """Right responses to training bookings, for fine-tuning."""
    rng = Random(f"examples/{seed}")
    return [{"prompt": b.question, "response": said(b)} for b in (draw_booking(rng, "train") for _ in range(n))]


LESSON = Lesson(
    draw_trace,
    rows,
    {"accuracy": (0.14, 0.25), "format_ok": (0.95, 1.0)},
    Schedule(stages=(Stage(640, 0.85), Stage(120, RIGHT))),
    examples=examples,
)
