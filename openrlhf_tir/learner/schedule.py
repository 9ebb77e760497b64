"""Learning-rate schedules: functions from the number of the update to the learning rate.

They depend on the version only, so a resumed run needs no saved state.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..config import Actor, Config, Critic

Schedule = Callable[[int], float]
"""Maps the number of an update, from 0, to its learning rate."""
UNWARMED = 10_000
"""Time scale of inverse_sqrt without warm-up, in updates, as in transformers."""


def lr_schedule(shape: str, *, peak: float, total: int, warmup: int = 0, min_ratio: float = 0.0) -> Schedule:
    """Return a schedule with a linear warm-up, then `shape` down to min_ratio * peak at the last update.

    The first warm-up update already has a positive rate, peak / (warmup + 1). After `total` updates the rate stays at
    its minimum. inverse_sqrt ignores `total` and `min_ratio`: after a warm-up of w updates it is peak / sqrt(update /
    w), without warm-up peak / sqrt(1 + update / UNWARMED).

    Args:
        shape: "constant", "cosine", "inverse_sqrt" or "linear".
        peak: The highest learning rate.
        total: Number of updates.
        warmup: Number of warm-up updates.
        min_ratio: The minimum rate as a share of `peak`.
    """
    scale = warmup or UNWARMED

    def lr(update: int) -> float:
        if update < warmup:
            return peak * (update + 1) / (warmup + 1)
        if shape == "constant":
            return peak
        if shape == "inverse_sqrt":
            return peak / math.sqrt(1.0 + (update - warmup) / scale)
        progress = min(1.0, (update - warmup) / max(1, total - 1 - warmup))
        remaining = 1.0 - progress if shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
        return peak * (min_ratio + (1.0 - min_ratio) * remaining)

    return lr


def rl_schedule(cfg: Config) -> Schedule:
    """Return the policy's schedule: actor.lr_scheduler over train.max_steps.

    It starts at the policy's first update, after critic.freezing_steps.
    """
    frozen = max(0, cfg.critic.freezing_steps)
    lr = _configured_schedule(cfg.actor, cfg.train.max_steps - frozen)
    return lambda update: lr(max(0, update - frozen))


def critic_schedule(cfg: Config) -> Schedule:
    """Return the critic's schedule: critic.lr_scheduler over train.max_steps."""
    return _configured_schedule(cfg.critic, cfg.train.max_steps)


def _configured_schedule(optim: Actor | Critic, total: int) -> Schedule:
    warmup = math.ceil(total * optim.lr_warmup_ratio)
    return lr_schedule(
        optim.lr_scheduler, peak=optim.learning_rate, total=total, warmup=warmup, min_ratio=optim.min_lr_ratio
    )
