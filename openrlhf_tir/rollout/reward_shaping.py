"""Shape every reward by length, whichever function gave it: OpenRLHF's penalties, under its names and in its order.

    overlong (DAPO, arXiv 2503.14476)   if n > B - buffer: r - factor * min(n - (B - buffer), buffer) / buffer
    stop properly (ProRL)               if the response was cut: r * coef, or coef itself if it is negative
    clip                                min(max(r, low), high)

r is the reward, n the tokens of the response, B the budget rollout.max_new_tokens. n counts tool output too, because B
does. The clip bounds the reward itself; OpenRLHF bounds what is left of it after the group's baseline, which is the
same for estimators without a baseline (gae, reinforce). Evaluation is not shaped, and shaping does not change which
answers count as correct for filters.
"""

from __future__ import annotations

from ..config import Reward
from ..types import Trajectory


def is_active(settings: Reward) -> bool:
    """Return True if the settings change any reward."""
    options = (settings.overlong_buffer_len, settings.stop_properly_penalty_coef, settings.clip_range)
    return any(option is not None for option in options)


def shaped_reward(reward: float, trajectory: Trajectory, settings: Reward, *, max_tokens: int) -> float:
    """Return the reward after penalties and clipping.

    Args:
        reward: The reward that the function gave.
        trajectory: The response.
        settings: The [reward] section.
        max_tokens: rollout.max_new_tokens.
    """
    buffer = settings.overlong_buffer_len
    if buffer is not None:
        excess = trajectory.response_tokens - (max_tokens - buffer)
        reward -= settings.overlong_penalty_factor * max(0.0, min(excess, buffer)) / buffer
    coefficient = settings.stop_properly_penalty_coef
    if coefficient is not None and trajectory.finish_reason == "length":
        reward = coefficient if coefficient < 0 else reward * coefficient
    if settings.clip_range is not None:
        low, high = settings.clip_range
        reward = min(max(reward, low), high)
    return reward
