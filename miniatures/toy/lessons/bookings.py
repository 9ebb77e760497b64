"""Bookings: the problems of the lessons in which a response is one call, and nothing is run: `toolrl` and `tool_n1`.

    Book a hotel in Rome, 3 nights, 2 guests.   ->   name hotel, city Rome, nights 3, guests 2

Four slots; each is in the question and has only to be copied. A lesson decides how often its base does that.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from openrlhf_tir.data.sft.tokens import SftRow, row_of

from ...rows import Split, split_of
from ..tokenizer import EOS_ID, encode
from ..traces import prompt_of

NAMES = ("hotel", "flat", "cabin", "boat")
CITIES = ("Rome", "Oslo", "Bern", "Lima", "Kyiv", "Graz", "Cork", "Nice", "Turin", "Porto", "Delhi", "Seoul")
NUMBERS = tuple(range(2, 10))
SLOTS = {"name": NAMES, "city": CITIES, "nights": NUMBERS, "guests": NUMBERS}
SYSTEM = "You book rooms. Think, then make one call."


class Booking(NamedTuple):
    name: str
    city: str
    nights: int
    guests: int

    @property
    def question(self) -> str:
        return f"Book a {self.name} in {self.city}, {self.nights} nights, {self.guests} guests."

    @property
    def arguments(self) -> dict[str, Any]:
        return {"city": self.city, "nights": self.nights, "guests": self.guests}

    @property
    def split(self) -> Split:
        return split_of(self.question)


def draw_booking(rng: Random, split: Split) -> Booking:
    while True:
        booking = Booking(*(rng.choice(values) for values in SLOTS.values()))  # type: ignore[arg-type]
        if booking.split == split:
            return booking


def with_wrong(booking: Booking, slots: set[str], rng: Random) -> Booking:
    """The booking with another value in each of these slots."""
    others = {
        slot: rng.choice([v for v in SLOTS[slot] if v != getattr(booking, slot)]) for slot in SLOTS if slot in slots
    }
    return booking._replace(**others)  # type: ignore[arg-type]


def trace(booking: Booking, response: str) -> SftRow:
    """A response to a booking for fine-tuning."""
    return row_of([(encode(prompt_of(booking.question)), 0.0), ([*encode(response), EOS_ID], 1.0)])


def verl_rows(bookings: list[Booking], truths: list[str], source: str) -> list[dict[str, Any]]:
    """verl's rows, as ToolRL and Tool-N1 publish theirs."""
    return [
        {
            "data_source": source,
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": booking.question}],
            "ability": "tool",
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {"index": i},
        }
        for i, (booking, truth) in enumerate(zip(bookings, truths, strict=True))
    ]
