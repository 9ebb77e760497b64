"""Deadlines of every call to another process."""

from __future__ import annotations

from pydantic import Field

from .base import Section


class Timeouts(Section):
    """Deadlines of what crosses a process. One that is missed is a fault: an engine is replaced and its groups are
    issued again, learner ranks start again from the last checkpoint. Small calls to an actor have
    rollout.unresponsive_s."""

    placement_s: float = Field(
        60.0,
        gt=0,
        description="the cluster must have resources free for an actor or the learner ranks; missed: tried again",
    )
    start_s: float = Field(1800.0, gt=0, description="an actor or a learner rank is up, its model loaded")
    push_s: float = Field(600.0, gt=0, description="an engine has loaded a weight push and sampled the canary")
    broadcast_s: float = Field(
        60.0,
        gt=0,
        description=(
            "with vllm.sync_backend = gloo or nccl: all engines have met the learner, and each bucket of weights is"
            " through; missed: the push is repeated without those that do not answer"
        ),
    )
    progress_s: float = Field(
        600.0,
        gt=0,
        description=(
            "an engine that has requests, is not paused and samples no token for so long is replaced;"
            " longer than the longest prefill"
        ),
    )
    learner_s: float = Field(
        3600.0,
        gt=0,
        description="one call of the learner is over: a step, the scores of a canary, writing weights or a checkpoint",
    )
