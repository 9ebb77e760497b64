"""Reference: the policy that the run started from, frozen, beside the policy on the same ranks.

Always loaded from actor.model_name_or_path, never from a checkpoint: a resumed run has the reference that it began
with. Under ZeRO-3 its weights are cut up over the ranks like the policy's; `ref.offload` keeps them in host memory
between forward passes. Log-probs come from the same chunked head, at the rollout's temperature and truncation like the
policy's, so that equal weights differ by nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...config import Config
from ..openrlhf_adapter import PolicyModel, ZeroStrategy
from ..packing import Row
from ..passes import Passes


class Reference:
    def __init__(self, cfg: Config, strategy: ZeroStrategy) -> None:
        self.model = strategy.prepare(PolicyModel(cfg, strategy, frozen=True))

    def log_probs(self, passes: Passes, rows: Sequence[Row]) -> list[np.ndarray]:
        return log_probs(self.model, passes, rows)

    def destroy(self) -> None:
        self.model.model.destroy()


def log_probs(model: PolicyModel, passes: Passes, rows: Sequence[Row], of: str = "asked") -> list[np.ndarray]:
    """[L-1] float32 per row: log-probs of the tokens whose field `of` is not 0, of the distribution that the rollout
    samples from; 0.0 elsewhere."""
    return passes.ask(
        model,
        rows,
        {of: np.float32},
        lambda m: model.score(m, wanted=m.fields[of] > 0)[0].float(),
    )
