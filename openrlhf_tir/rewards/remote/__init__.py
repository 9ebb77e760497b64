"""Call OpenRLHF's `reward_func` in a Python file, or its reward servers. `reward.remote_url` names them.

responses of a prompt ──> batches.py ──> file.py: reward_func(queries, prompts, labels), in a worker process
                                         http.py: POST {"query", "prompts", "labels"}, with retries
                      ──> answer.py ──> RewardParts
"""

from __future__ import annotations

from ...errors import RewardError
from ...types import RewardParts, Task, Trajectory
from ..context import RewardContext


def remote(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Stand for the registered reward 'remote', which RewardPool calls in batches.

    Raises:
        RewardError: Always: a single call is not possible.
    """
    raise RewardError("Reward 'remote' is asked by RewardPool.score, in batches. Use that.")
