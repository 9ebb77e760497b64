"""A reward model's score of prompt and response. Set reward.model_name_or_path; it is computed in a process of its own.

Correct, for filters and accuracy, is what scores above option `correct_above` (0). A model that dies or is late gives
no score: the sample fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import ConfigError, RewardModelError
from ...types import RewardParts, Task, Trajectory
from ..context import RewardContext


def score() -> float:
    """What `model` asks for: whoever runs rewards knows where the reward model is (pool.py)."""
    raise RewardModelError("No reward model was started here: this command only scores with functions.")


def model(
    trajectory: Trajectory, task: Task, context: RewardContext, ask: Callable[..., Any] = lambda function: function()
) -> RewardParts:
    """parts: model_score."""
    if not context.settings.model_name_or_path:
        raise ConfigError(
            "The reward 'model' needs a reward model."
            " Set reward.model_name_or_path to a HF sequence classifier of one label."
        )
    if unknown := set(context.options) - {"correct_above"}:
        raise ConfigError(f"The reward 'model' has no option {sorted(unknown)[0]!r}. Known: correct_above.")
    above = float(context.options.get("correct_above", 0.0))
    value = float(ask(score))
    return RewardParts(value, value > above, {"model_score": value})
