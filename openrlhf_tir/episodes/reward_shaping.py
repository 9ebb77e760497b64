"""Shaping: what every reward undergoes, whichever function gave it. OpenRLHF's penalties under its names, in its order;
n tokens of a response, B the budget.

    overlong (DAPO, arXiv 2503.14476)   where n > B - buffer: r - factor * min(n - (B - buffer), buffer) / buffer
    stop properly (ProRL)               where the response was cut: r * coef, or coef itself where it is below 0
    clip                                min(max(r, low), high)

n counts the whole response, tool output too, because the budget rollout.max_new_tokens does. The clip bounds the reward
itself; OpenRLHF bounds what is left of it after the group's baseline, which is the same for estimators without one
(gae, reinforce). Evaluation is not shaped, and neither is what filters call correct.
"""

from __future__ import annotations

from ..config import Reward
from ..types import Trajectory


def shapes(cfg: Reward) -> bool:
    return not (cfg.overlong_buffer_len is None and cfg.stop_properly_penalty_coef is None and cfg.clip_range is None)


def shaped(reward: float, trajectory: Trajectory, cfg: Reward, *, max_tokens: int) -> float:
    """max_tokens: rollout.max_new_tokens."""
    if cfg.overlong_buffer_len is not None:
        over = trajectory.response_tokens - (max_tokens - cfg.overlong_buffer_len)
        reward -= cfg.overlong_penalty_factor * max(0.0, min(over, cfg.overlong_buffer_len)) / cfg.overlong_buffer_len
    coef = cfg.stop_properly_penalty_coef
    if coef is not None and trajectory.finish_reason == "length":
        reward = coef if coef < 0 else reward * coef
    if cfg.clip_range is not None:
        reward = min(max(reward, cfg.clip_range[0]), cfg.clip_range[1])
    return reward
