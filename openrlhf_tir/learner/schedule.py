"""Learning-rate schedule: number of the update -> learning rate. Of the version alone: a resume needs no state."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..config import Actor, Config, Critic

Schedule = Callable[[int], float]
SHAPES = ("constant", "cosine", "inverse_sqrt", "linear")
UNWARMED = 10_000
"""The time scale of inverse_sqrt without warm-up, in updates: transformers'."""


def lr_schedule(shape: str, *, peak: float, total: int, warmup: int = 0, min_ratio: float = 0.0) -> Schedule:
    """Linear warm-up over `warmup` updates, then `shape` down to min_ratio * peak at the last of `total` updates.

    update counts from 0; the first warm-up update already moves (peak / (warmup + 1)). Past `total` the floor holds.
    inverse_sqrt knows neither: behind w updates of warm-up it is peak / sqrt(update / w), without any peak / sqrt(1 +
    update / UNWARMED)."""
    if shape not in SHAPES:
        raise ValueError(
            f"Unknown schedule {shape!r}. Known: {', '.join(SHAPES)}. Set actor.lr_scheduler to one of them."
        )
    scale = warmup or UNWARMED

    def lr(update: int) -> float:
        if update < warmup:
            return peak * (update + 1) / (warmup + 1)
        if shape == "constant":
            return peak
        if shape == "inverse_sqrt":
            return peak / math.sqrt(1.0 + (update - warmup) / scale)
        done = min(1.0, (update - warmup) / max(1, total - 1 - warmup))
        left = 1.0 - done if shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return peak * (min_ratio + (1.0 - min_ratio) * left)

    return lr


def rl_schedule(cfg: Config) -> Schedule:
    """The policy's schedule: actor.lr_scheduler over train.max_steps, from its first step (critic.freezing_steps)."""
    frozen = max(0, cfg.critic.freezing_steps)
    lr = _of(cfg.actor, cfg.train.max_steps - frozen)
    return lambda update: lr(max(0, update - frozen))


def critic_schedule(cfg: Config) -> Schedule:
    """The critic's: critic.lr_scheduler over train.max_steps."""
    return _of(cfg.critic, cfg.train.max_steps)


def _of(optim: Actor | Critic, total: int) -> Schedule:
    warmup = math.ceil(total * optim.lr_warmup_ratio)
    return lr_schedule(
        optim.lr_scheduler, peak=optim.learning_rate, total=total, warmup=warmup, min_ratio=optim.min_lr_ratio
    )
