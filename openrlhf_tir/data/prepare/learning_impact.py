"""Learning impact: how a row's pass rates over the epochs follow the learning of the whole data set (LIMR, arXiv
2502.11886, equation 1).

    s_i = 1 - sum_k (r_i^k - m^k)^2 / sum_k (1 - m^k)^2

r_i^k is the pass rate of row i in epoch k, m^k its mean over all rows. A row that follows the mean has 1, a row that is
right from the start 0, a row that is never right less. The paper trains on the rows with 0.6 or more. Example: m =
(.25, .75), r_i = (0, 1): 1 - (.0625 + .0625) / (.5625 + .0625) = .8.

As in LIMR's code, an epoch without a sample takes the value of the next epoch that has one. A row without samples in
the last epoch has no score.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...errors import DataError
from .outcomes import Outcome


def learning_impact(outcomes: Mapping[str, Outcome]) -> dict[str, float]:
    """Return the score of every row that has one.

    Raises:
        DataError: The samples are of fewer than two epochs, or all were right from the start.
    """
    epochs = sorted({epoch for o in outcomes.values() for epoch in o.samples})
    if len(epochs) < 2:
        raise DataError(
            f"The samples are of {len(epochs)} epoch. Learning impact compares how rows are learned over several: train"
            " with train.num_episodes of 2 or more and logger.trajectories = 1, or select by --pass-rate."
        )
    rates: dict[str, list[float]] = {}
    for row, outcome in outcomes.items():
        known = outcome.by_epoch()
        filled: list[float] = []
        following: float | None = None
        for epoch in reversed(epochs):
            following = known.get(epoch, following)
            if following is None:
                break
            filled.append(following)
        if len(filled) == len(epochs):
            rates[row] = filled[::-1]
    if not rates:
        raise DataError(f"No row has samples in epoch {epochs[-1]}, the last. Give the samples of whole epochs.")
    r_NK = np.array(list(rates.values()))
    m_K = r_NK.mean(axis=0)
    room = float(((1 - m_K) ** 2).sum())
    if room == 0:
        raise DataError(
            "Every sample of every epoch is right: nothing was learned from these rows."
            " Select by --pass-rate, or from a harder data set."
        )
    scores = 1 - ((r_NK - m_K) ** 2).sum(axis=1) / room
    return dict(zip(rates, map(float, scores), strict=True))
