"""Figures from what environments reported about the responses (Item.signals), as ratios of sums over problems.

    ended           share of responses whose episode came to its end; the others ran out of calls or tokens and are
                    wrong
    turns           swe: steps per response                                                           SkyRL-v0's turns
    viewed_first    swe: of the responses that edited a file, the share that had viewed it before
    patch_empty     swe: of the judged patches, the share that change nothing
    tests_passed    swe: of the hidden tests of the judged patches, the share that pass
    state_right     functions, bfcl: share of responses that leave every variable as the true calls do
    calls_matched   functions, bfcl: share of the true calls that were made
    errors          functions, bfcl: failed calls per response

A figure exists if some response has what it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..items import Item
from .bootstrap import Ratio

Signals = Mapping[str, Any]
"""What the environment reported about one response."""
Contribution = Callable[[Signals], tuple[float, float]]
"""Signals of one response -> (what it adds to the numerator, to the denominator)."""


def env_signals(items: Sequence[Item]) -> dict[str, Ratio]:
    """Return the figures by name; none if no environment reported anything that is counted here.

    If an environment reported something for other responses, a response without signals counts as not ended.
    """
    reporting = {item.env for item in items if item.signals}
    signals_of_items = [
        [signals or {"ended": False} for signals in item.signals or [{}] * item.n] if item.env in reporting else []
        for item in items
    ]
    ratios = {}
    for name, contribution in FIGURES.items():
        sums = np.array(
            [
                np.sum([contribution(signals) for signals in of_item] or [(0.0, 0.0)], axis=0)
                for of_item in signals_of_items
            ],
            float,
        )
        if len(items) and sums[:, 1].any():
            ratios[name] = Ratio(sums[:, 0], sums[:, 1])
    return ratios


def _share(signals: Signals, name: str) -> tuple[float, float]:
    """Return (1 if the signal is true, 1 if it exists)."""
    return float(bool(signals.get(name))), float(signals.get(name) is not None)


def _turns(signals: Signals) -> tuple[float, float]:
    # functions and bfcl have a signal of the same name, which numbers the user's turns; they also have state_total.
    counts = "turn" in signals and "state_total" not in signals
    return (float(signals["turn"]), 1.0) if counts else (0.0, 0.0)


def _patch_empty(signals: Signals) -> tuple[float, float]:
    return float(signals.get("evaluation") == "patch_empty"), float("evaluation" in signals)


def _state_right(signals: Signals) -> tuple[float, float]:
    counts = "state_total" in signals
    return float(counts and signals.get("state_match") == signals["state_total"]), float(counts)


def _matched_of_total(signals: Signals, matched: str, total: str) -> tuple[float, float]:
    return (float(signals.get(matched, 0)), float(signals[total])) if total in signals else (0.0, 0.0)


FIGURES: dict[str, Contribution] = {
    "ended": lambda signals: _share(signals, "ended"),
    "turns": _turns,
    "viewed_first": lambda signals: _share(signals, "viewed_first"),
    "patch_empty": _patch_empty,
    "tests_passed": lambda signals: _matched_of_total(signals, "tests_passed", "tests_total"),
    "state_right": _state_right,
    "calls_matched": lambda signals: _matched_of_total(signals, "functions_matched", "functions_total"),
    "errors": lambda signals: (float(signals.get("errors", 0)), float("errors" in signals)),
}
