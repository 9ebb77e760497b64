"""Take the score of a reward model (reward.model_name_or_path), which runs in processes of its own.

A response is correct, for filters and accuracy, if it scores above the option `correct_above` (0). If the model dies or
is late, there is no score and the sample fails.
"""

from __future__ import annotations

from ...errors import ConfigError
from ...types import RewardParts, Task, Trajectory
from ..context import RewardContext


async def model(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Score one response. Its part is model_score.

    Raises:
        ConfigError: No model is set, or an option is unknown.
        RewardModelError: The model does not answer.
    """
    if not context.settings.model_name_or_path:
        raise ConfigError(
            "The reward 'model' needs a reward model."
            " Set reward.model_name_or_path to a HF sequence classifier of one label."
        )
    context.check_options({"correct_above": float}, "reward.name = 'model'")
    above = float(context.options.get("correct_above", 0.0))
    value = float(await context.model_score(trajectory))
    return RewardParts(value, value > above, {"model_score": value})
