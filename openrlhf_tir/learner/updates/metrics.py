"""Combine the metrics of a batch's updates."""

from __future__ import annotations

import math
from collections.abc import Sequence


def over_updates(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the metrics of a batch, given loss, grad_norm and lr of each of its updates.

    Returns:
        `updates` is the number of updates that were made, i.e. whose gradient was finite. Of several updates loss and
        grad_norm are the means over those, lr is the last one's, and `grad_norm_max` and `updates_left_out` (the
        number of skipped updates) are added. If no update was made, loss and grad_norm are those of the last skipped
        one, so that the metrics show that it was not finite.
    """
    applied = [part for part in parts if math.isfinite(part["grad_norm"])]
    if len(parts) == 1 or not applied:
        return parts[-1] | {"updates": float(len(applied))}
    means = {name: sum(part[name] for part in applied) / len(applied) for name in ("loss", "grad_norm")}
    return means | {
        "lr": applied[-1]["lr"],
        "updates": float(len(applied)),
        "grad_norm_max": max(part["grad_norm"] for part in applied),
        "updates_left_out": float(len(parts) - len(applied)),
    }
