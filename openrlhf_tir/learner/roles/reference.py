"""The reference model: the policy that the run started from, frozen, on the same ranks as the policy.

It is always loaded from actor.model_name_or_path and never from a checkpoint, so a resumed run has the reference that
it began with. ZeRO-3 partitions its weights over the ranks like the policy's; `ref.offload` keeps them in host memory
between forward passes. Its log-probs come from the same chunked head, with the temperature and truncation of the
rollout, like the policy's. So equal weights give exactly equal log-probs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...config import Config
from ..openrlhf_adapter import PolicyModel, ZeroStrategy
from ..packing import Row
from ..passes import MicroBatchRunner


class Reference:
    """The reference model of one rank."""

    def __init__(self, cfg: Config, strategy: ZeroStrategy) -> None:
        self.model = strategy.prepare(PolicyModel(cfg, strategy, frozen=True))

    def log_probs(self, runner: MicroBatchRunner, rows: Sequence[Row]) -> list[np.ndarray]:
        """Return the log-probs of the tokens whose field `scored` is not 0; see the function below. Collective."""
        return log_probs(self.model, runner, rows)

    def destroy(self) -> None:
        """Free the DeepSpeed engine."""
        self.model.model.destroy()


def log_probs(
    model: PolicyModel, runner: MicroBatchRunner, rows: Sequence[Row], mask_field: str = "scored"
) -> list[np.ndarray]:
    """Return log-probs under the distribution that the rollout samples from (its temperature and truncation).

    Collective.

    Args:
        model: The policy or the reference.
        runner: Runs the passes.
        rows: The rows of this rank.
        mask_field: Field of the rows that is not 0 on the tokens to score.

    Returns:
        [L-1] float32 per row; 0.0 on the other tokens.
    """
    return runner.score_rows(
        model,
        rows,
        {mask_field: np.float32},
        lambda micro: model.score(micro, wanted=micro.fields[mask_field] > 0)[0].float(),
    )
