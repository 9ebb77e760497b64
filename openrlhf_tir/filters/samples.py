"""Sample filters mask the loss of single samples and keep their group: `(Trajectory, options) -> reason`.

An empty reason trains the sample. A masked sample stays in its group's statistics and in the whitening of the batch, as
in ZeroTIR's code, where the loss mask is set after the advantages are computed. It counts neither in the loss nor in
the number of tokens that the loss is divided by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import FilterError
from ..rewards import accept
from ..types import Group, Trajectory
from ..user_code import plugins
from ..user_code.failures import UserFunction, show
from .zerotir import mask_reason

ALL_MASKED = "all_masked"
"""Reason for dropping a group whose samples are all masked."""


def zerotir(trajectory: Trajectory, options: dict[str, Any]) -> str:
    """ZeroTIR's sample filter. It needs the reward `zerotir`, which records what it reads.

    Samples that are improbable under the model that the run started from are masked by the learner, which alone knows
    that probability (filter.max_base_ppl).

    Args:
        trajectory: The sample.
        options: `max_tokens`: from this length on a wrong answer counts as cut off.
    """
    return mask_reason(trajectory.parts, base_ppl=None, max_tokens=options["max_tokens"])


def over_length(trajectory: Trajectory, options: dict[str, Any]) -> str:
    """Mask what hit the length limit, right or wrong.

    Sources: ARTIST's function calling (arXiv 2505.01441), overlong filtering of DAPO (arXiv 2503.14476).
    """
    return "over_length" if trajectory.finish_reason == "length" else ""


REGISTRY = {"over_length": f"{__name__}:over_length", "zerotir": f"{__name__}:zerotir"}
SAMPLE_FILTER = plugins.Place(
    "sample filter", "filter.sample", '(trajectory, options) -> reason, "" to train it', REGISTRY, plugins.takes(2)
)


@dataclass(frozen=True)
class SampleFilter(UserFunction):
    """The sample filter with a name: a registered one, or a function of the user's."""

    error: ClassVar[type[FilterError]] = FilterError
    """What it raises where the filter ends its process."""

    def __call__(self, group: Group, options: dict[str, Any]) -> list[str]:
        """Return the reason for each valid trajectory; empty where it is trained.

        Raises:
            FilterError: The filter raised, or returned something else than a reason.
        """
        loaded = accept.LoadedFunction.load(SAMPLE_FILTER, self.name, FilterError)
        with loaded.guarded():
            reasons = [loaded.function(trajectory, options) for trajectory in group.valid]
            for reason in reasons:
                if not isinstance(reason, str):
                    raise accept.WrongResult(f"it returned {show(reason)}, not a reason")
                if reason:
                    accept.check_reason(reason)
        return reasons
