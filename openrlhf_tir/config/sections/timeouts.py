"""Deadlines of calls to other processes."""

from __future__ import annotations

from typing import ClassVar

from ..setting import ALLOWED, Resume, setting
from .base import Section


class Timeouts(Section):
    """Deadlines of calls between processes. A missed deadline is a fault: an engine is replaced and its groups are
    issued again; learner ranks start again from the last checkpoint."""

    RESUME: ClassVar[Resume] = ALLOWED

    start_s: float = setting(
        1800.0,
        gt=0,
        description="For an actor or a learner rank to start and load its model.",
        unit="seconds",
        fine_tuning=True,
    )
    push_s: float = setting(
        600.0,
        gt=0,
        description=(
            "For an engine to freeze its requests, load a weight push and sample the canary; the learner's writing and"
            " scoring have learner_s. Half of it, at most 300 s, is for an actor or a reward model to answer a small"
            " call; a tenth, at most 60 s, for each bucket of a broadcast (vllm.sync_backend = gloo or nccl)."
        ),
        unit="seconds",
    )
    learner_s: float = setting(
        3600.0,
        gt=0,
        description="For one call of the learner: a step, the scores of a canary, writing weights or a checkpoint.",
        unit="seconds",
        fine_tuning=True,
    )
