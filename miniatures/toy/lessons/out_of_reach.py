"""Out of reach: the quickstart's examples, and a training set of which two problems of three are never solved, as most
of a hard set are not by a model that is small for it.

    Find the product of the integers from 12 to 15.

No example has code for that, so sampling does not come upon it: what is written instead is the code for a sum. The
held-out problems are the quickstart's."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from ...rows import Split
from ..task import make_problems
from ..traces import draw_trace
from . import Lesson


def product(rng: Random) -> dict[str, Any]:
    """A row whose answer is a product of three or four integers: the two that its question names are not enough."""
    first = rng.randint(12, 60)
    last = first + rng.randint(2, 3)
    return {
        "prompt": f"Find the product of the integers from {first} to {last}.",
        "label": str(math.prod(range(first, last + 1))),
        "meta": {"kind": "product"},
    }


def rows(n: int, split: Split, seed: int) -> list[dict[str, Any]]:
    """The first, fourth, ... of the training problems can be solved."""
    if split == "test":
        return make_problems(n, split, seed)
    rng, solvable = Random(f"products/{seed}"), iter(make_problems(-(-n // 3), split, seed))
    return [product(rng) if i % 3 else next(solvable) for i in range(n)]


LESSON = Lesson(draw_trace, rows)
