"""Sample filters: (Trajectory, options) -> why it is not trained, "" where it is. They mask a sample's loss and leave
its group alone.

A masked sample stays in its group's statistics and in the whitening of the batch, as in ZeroTIR's code, where the loss
mask is set after the advantages are known; it counts neither in the loss nor in what the loss is divided by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import plugins
from ..errors import FilterError
from ..rewards import accept
from ..types import Group, Trajectory
from .zerotir import why_dropped

ALL_MASKED = "all_masked"
"""Reason of a group of which no sample is left to train."""


def zerotir(trajectory: Trajectory, options: dict[str, Any]) -> str:
    """options: `max_tokens`, from which on a wrong answer counts as cut off.

    What is improbable under the policy that the run started from is known to the learner alone, which masks it
    (filter.max_base_ppl).
    """
    return why_dropped(trajectory.parts, base_ppl=None, max_tokens=options["max_tokens"])


def over_length(trajectory: Trajectory, options: dict[str, Any]) -> str:
    """What the limit cut, right or wrong (ARTIST's function calling, arXiv 2505.01441; DAPO's overlong filtering)."""
    return "over_length" if trajectory.finish_reason == "length" else ""


REGISTRY = {"over_length": f"{__name__}:over_length", "zerotir": f"{__name__}:zerotir"}
SAMPLE_FILTER = plugins.Place(
    "sample filter", "filter.sample", '(trajectory, options) -> reason, "" to train it', REGISTRY, plugins.takes(2)
)


@dataclass(frozen=True)
class SampleFilter:
    """Masks by name; one of one's own can be asked in another process."""

    name: str
    user_code: ClassVar[bool] = True
    """It is interrupted where it is when it uses up its time (rewards/workers.py)."""

    @property
    def __name__(self) -> str:
        """The name that the workers' messages use."""
        return self.name.rpartition(":")[2]

    def __call__(self, group: Group, options: dict[str, Any]) -> list[str]:
        """One reason per valid trajectory. Raises FilterError."""
        function = plugins.load(SAMPLE_FILTER, self.name)
        with accept.named(SAMPLE_FILTER, self.name, function, FilterError):
            reasons = [function(t, options) for t in group.valid]
        wrong = next((r for r in reasons if not isinstance(r, str)), None)
        if any(not isinstance(r, str) for r in reasons):
            where = plugins.location(function)
            raise FilterError(
                f"{SAMPLE_FILTER.setting} = {self.name!r}: {where}: it returned {wrong!r}, not a reason."
                f" It is {SAMPLE_FILTER.shape}."
            )
        for reason in filter(None, reasons):
            accept.check_reason(reason, SAMPLE_FILTER, self.name, function)
        return reasons
