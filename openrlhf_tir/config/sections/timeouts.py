"""Deadlines of every call to another process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from ..setting import ALLOWED, Resume, rule, setting
from .base import Section

if TYPE_CHECKING:
    from ..schema import Config


class Timeouts(Section):
    """Deadlines of calls between processes. A missed deadline is a fault: an engine is replaced and its groups are
    issued again; learner ranks start again from the last checkpoint. Small calls to an actor have
    rollout.unresponsive_s."""

    RESUME: ClassVar[Resume] = ALLOWED

    placement_s: float = setting(
        60.0,
        gt=0,
        description="For the cluster to have resources free for an actor or the learner ranks. Missed: tried again.",
        unit="seconds",
        fine_tuning=True,
    )
    start_s: float = setting(
        1800.0,
        gt=0,
        description="For an actor or a learner rank to start and load its model.",
        unit="seconds",
        fine_tuning=True,
    )
    push_s: float = setting(
        600.0, gt=0, description="For an engine to load a weight push and sample the canary.", unit="seconds"
    )
    broadcast_s: float = setting(
        60.0,
        gt=0,
        description=(
            "With vllm.sync_backend = gloo or nccl: for all engines to meet the learner, and for each bucket of"
            " weights. Missed: the push is repeated without the engines that do not answer."
        ),
        unit="seconds",
    )
    progress_s: float = setting(
        600.0,
        gt=0,
        description=(
            "For an engine with requests that is not paused to sample a token; else it is replaced. Must be longer than"
            " the longest prefill."
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


@rule("timeouts.broadcast_s")
def torn_broadcast_can_be_repeated(c: Config) -> Iterator[str]:
    if c.push_backend in ("gloo", "nccl") and c.timeouts.broadcast_s >= c.timeouts.push_s:
        yield (
            f"timeouts.broadcast_s = {c.timeouts.broadcast_s:g} leaves no time to repeat a torn push within"
            f" timeouts.push_s = {c.timeouts.push_s:g}. Make it a fraction of that, e.g. 60."
        )
