"""Verify: what the engine sampled after a push, against the learner's own log-probs. numpy only.

The digest proves that the bytes arrived; only this proves that they were *loaded*: a tied lm_head that keeps its old packed copy,
a layer that the file did not contain or a stale prefix cache all pass the digest and fail here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..types import Completion


def max_abs_diff(completions: Sequence[Completion], learner_logprobs: Sequence[np.ndarray]) -> float:
    """Largest |engine - learner| log-prob over the sampled tokens, in nats. `learner_logprobs[i]` [T_i], aligned with `completions[i]`.

    inf when a log-prob is not finite.

    Raises ValueError when there is nothing to compare or the lengths disagree: that is a bug, not a bad push.
    """
    lengths = [len(c.logprobs) for c in completions]
    if not sum(lengths) or lengths != [len(lp) for lp in learner_logprobs]:
        raise ValueError(f"canary of {lengths} tokens cannot be compared with learner scores of {[len(lp) for lp in learner_logprobs]} tokens")
    engine_T = np.concatenate([c.logprobs for c in completions]).astype(np.float64)
    learner_T = np.concatenate([np.asarray(lp, np.float64) for lp in learner_logprobs])
    diff = float(np.max(np.abs(engine_T - learner_T)))
    return diff if np.isfinite(diff) else float("inf")
