"""What environments said of the sampled responses (Item.signals), each figure as a ratio of sums over problems.

ended           share of responses whose episode came to its end: the others ran out of calls or tokens before, and are
                wrong
turns           swe: steps per response                                                           SkyRL-v0's turns
viewed_first    swe: of the responses that edited a file, the share that had looked at it before
patch_empty     swe: of the patches that were judged, the share that change nothing
tests_passed    swe: of the hidden tests of the patches that were judged by them, the share that pass
state_right     functions, bfcl: share of responses that leave every variable as the true calls do
calls_matched   functions, bfcl: share of the true calls that were made
errors          functions, bfcl: calls that went wrong, per response

A figure is there where some response has what it counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..items import Item
from .bootstrap import Ratio

Said = Mapping[str, Any]
Counted = Callable[[Said], tuple[float, float]]
"""One response -> (what it adds to the numerator, to the denominator)."""


def env_signals(items: Sequence[Item]) -> dict[str, Ratio]:
    """{} where no environment said anything that is counted here. Where it did, a response that never came to it has
    not ended."""
    told = {i.env for i in items if i.signals}
    said = [[s or {"ended": False} for s in i.signals or [{}] * i.n] if i.env in told else [] for i in items]
    out = {}
    for name, counted in FIGURES.items():
        sums = np.array([np.sum([counted(s) for s in of_item] or [(0.0, 0.0)], axis=0) for of_item in said], float)
        if len(items) and sums[:, 1].any():
            out[name] = Ratio(sums[:, 0], sums[:, 1])
    return out


def _share(said: Said, name: str) -> tuple[float, float]:
    """(1 if it is true, 1 if there is such a signal)."""
    return float(bool(said.get(name))), float(said.get(name) is not None)


def _turns(said: Said) -> tuple[float, float]:
    """`turn` of functions and bfcl is which of the user's turns it is."""
    counts = "turn" in said and "state_total" not in said
    return (float(said["turn"]), 1.0) if counts else (0.0, 0.0)


def _patch_empty(said: Said) -> tuple[float, float]:
    return float(said.get("evaluation") == "patch_empty"), float("evaluation" in said)


def _state_right(said: Said) -> tuple[float, float]:
    counts = "state_total" in said
    return float(counts and said.get("state_match") == said["state_total"]), float(counts)


def _over(said: Said, matched: str, total: str) -> tuple[float, float]:
    return (float(said.get(matched, 0)), float(said[total])) if total in said else (0.0, 0.0)


FIGURES: dict[str, Counted] = {
    "ended": lambda s: _share(s, "ended"),
    "turns": _turns,
    "viewed_first": lambda s: _share(s, "viewed_first"),
    "patch_empty": _patch_empty,
    "tests_passed": lambda s: _over(s, "tests_passed", "tests_total"),
    "state_right": _state_right,
    "calls_matched": lambda s: _over(s, "functions_matched", "functions_total"),
    "errors": lambda s: (float(s.get("errors", 0)), float("errors" in s)),
}
