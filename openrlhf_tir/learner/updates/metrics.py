"""Metrics of a batch from those of its updates."""

from __future__ import annotations

import math
from collections.abc import Sequence


def over_updates(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """The metrics of a batch from those of its updates: `updates` counts those that were made, whose loss and grad_norm
    are averaged; lr is the last.

    None was finite: loss and norm are those of the last, so that they say it. Of several, `grad_norm_max` and how many
    were left out besides."""
    made = [part for part in parts if math.isfinite(part["grad_norm"])]
    if len(parts) == 1 or not made:
        return parts[-1] | {"updates": float(len(made))}
    mean = {name: sum(part[name] for part in made) / len(made) for name in ("loss", "grad_norm")}
    largest = max(part["grad_norm"] for part in made)
    return mean | {
        "lr": made[-1]["lr"],
        "updates": float(len(made)),
        "grad_norm_max": largest,
        "updates_left_out": float(len(parts) - len(made)),
    }
