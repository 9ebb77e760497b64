"""OpenRLHF's `reward_func` of a Python file, or its reward servers. Name them in `reward.remote_url`.

responses of a prompt -> batches.py -> file.py: reward_func(queries, prompts, labels), in a worker process
                                       http.py: POST {"query", "prompts", "labels"}, tried again
                      -> answer.py -> RewardParts
"""

from __future__ import annotations

from ...errors import RewardError
from ...types import RewardParts, Task, Trajectory
from ..context import RewardContext


def remote(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """The registered reward 'remote'. `RewardPool` asks for it in batches and waits: it cannot be had on the spot."""
    raise RewardError("Reward 'remote' is asked by RewardPool.score, in batches. Use that.")
