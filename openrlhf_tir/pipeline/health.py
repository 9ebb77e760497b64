"""Health: end runs that go nowhere, by name. It counts events, never seconds, so a slow machine ends nothing.

counted in a row                        limit                       error          meaning
groups that failed for good             more than a batch           StallError     something outside is down
groups that were filtered or failed     MAX_UNUSED_BATCHES,         Unproductive   no group could be learned from
                                        at least MIN_UNUSED groups
steps without a finite gradient         MAX_NONFINITE_STEPS         Diverged       loss or weights are broken
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

from ..config import Config
from ..errors import USER_CODE_REASONS, Diverged, MethodBroken, StallError, TaskRefused, Unproductive
from ..ports import Rollout
from ..types import BatchItem, Group, GroupMeta, GroupState, StepReport

log = logging.getLogger(__name__)
MAX_UNUSED_BATCHES = 8
"""Batches of groups that were all unused, after which a run ends: the data or the filters do not fit the model."""
MAX_NONFINITE_STEPS = 3
"""Steps without a finite gradient in a row, after which a run ends. One alone is a sample's; three are the weights'."""
MIN_UNUSED = 256
"""Groups that must be unused in a row at least. With small batches bad luck would end a healthy run; at an acceptance
of 5 % the probability of 256 in a row is 2e-6."""
EXAMPLE_TIMEOUT_S = 30.0
"""Deadline for fetching one group from the object store, of which a few lines are printed: the run ends without the
example if it takes longer."""
EXCERPT = 300
"""Characters of an example's prompt and response."""
MAX_NAMED = 8
"""Groups of a batch that are named in a message."""


class Health:
    """Counts failures in a row and raises when a limit is exceeded. One per run."""

    def __init__(self, cfg: Config) -> None:
        self.batch_groups = cfg.rollout.batch_size
        self.max_nonfinite: float = MAX_NONFINITE_STEPS
        self.max_unused: float = max(MAX_UNUSED_BATCHES * self.batch_groups, MIN_UNUSED)
        self.failed_in_a_row = 0
        self.nonfinite_in_a_row = 0
        self.unused: Counter[str] = Counter()
        """Groups that were not accepted since the last accepted one, by reason."""
        self._example: tuple[str, GroupMeta, Any] | None = None

    def group_finished(
        self, end: GroupState, meta: GroupMeta | None, payload: Any, failed: str | None, tries: int
    ) -> None:
        """Count a group that has left the engines.

        Args:
            end: Its new state.
            meta: Its metadata, if it was evaluated.
            payload: Reference to its trajectories.
            failed: Code of the fault, if there was one.
            tries: Attempts so far.

        Raises:
            StallError: More groups than a batch failed for good in a row.
            MethodBroken: The same, and the last because the environment refuses its row.
        """
        if end == GroupState.BUFFERED:
            self.unused.clear()
        elif end in (GroupState.FILTERED, GroupState.FAILED):
            reason = f"failed({failed})" if failed or meta is None else f"dropped({meta.verdict.reason})"
            self.unused[reason] += 1
            if meta is not None:
                self._example = reason, meta, payload
        # Faults of user code have a count and an error of their own (method_errors.py).
        if end == GroupState.FAILED and failed not in USER_CODE_REASONS:
            self.failed_in_a_row += 1
        elif failed is None:
            self.failed_in_a_row = 0
        if self.failed_in_a_row <= self.batch_groups:
            return
        if failed == TaskRefused.reason and meta is not None:
            raise MethodBroken(
                f"{self.failed_in_a_row} groups in a row failed for good, the last, {meta.key}, since its environment"
                f" refuses the row: {meta.why.get(failed)} Are these rows for this environment?"
            )
        raise StallError(
            f"{self.failed_in_a_row} groups in a row failed for good, the last by {failed!r} after {tries} tries. The"
            " environment, an engine or the verifier is down: see its log, then go on with --resume."
        )

    @property
    def unproductive(self) -> bool:
        """True if so many groups in a row were not accepted that the run should end."""
        return self.unused.total() >= self.max_unused

    async def why_unproductive(self, rollout: Rollout) -> Unproductive:
        """Return the error to raise, with counts per reason and one group as an example."""
        reasons = ", ".join(f"{reason} {n}" for reason, n in self.unused.most_common())
        example = await self._describe_example(rollout)
        return Unproductive(
            f"None of the last {self.unused.total()} groups could be trained: {reasons}. {example}"
            " Are the problems of a difficulty that this model sometimes solves, and do reward, prompt template and"
            " filters fit the data?"
        )

    async def _describe_example(self, rollout: Rollout) -> str:
        """Return a sentence about the last group that was not used, with its text if it can be fetched."""
        if self._example is None:
            return "No group came back, so there is no example."
        reason, meta, payload = self._example
        example = (
            f"An example, group {meta.key}, {reason}: rewards {meta.rewards}, correct"
            f" {sum(meta.correct)}/{len(meta.correct)}, failures {meta.failures}"
        )
        try:
            async with asyncio.timeout(EXAMPLE_TIMEOUT_S):
                (group,) = await rollout.fetch([payload])
        except Exception as e:  # The engine's process may be gone. The counts must be reported all the same.
            return f"{example} (its text cannot be fetched: {type(e).__name__})."
        return f"{example}; {_excerpt(group)}."

    def trained(self, report: StepReport) -> None:
        """Record a step with a finite gradient. Of several updates some may have been left out."""
        self.nonfinite_in_a_row = 0
        for reason in report.why_skipped:
            log.warning("The gradient of one of the batch's updates is not finite, so it is left out. %s", reason)

    def not_finite(self, report: StepReport, items: list[BatchItem]) -> None:
        """Record a step without a finite gradient, which changed nothing.

        Args:
            report: The learner's report of the step.
            items: The groups of the batch.

        Raises:
            Diverged: MAX_NONFINITE_STEPS steps in a row had none.
        """
        self.nonfinite_in_a_row += 1
        names = ", ".join(str(item.meta.key) for item in items[:MAX_NAMED]) + (
            f" and {len(items) - MAX_NAMED} more" if len(items) > MAX_NAMED else ""
        )
        facts = ", ".join(
            f"{name} {report.metrics[name]:g}" for name in ("grad_norm", "loss", "lr") if name in report.metrics
        )
        message = (
            f"The gradient of the step on version {report.version} is not finite ({facts}): the weights stay as they"
            f" are. Groups (epoch/prompt/attempt): {names}." + "".join(f" {reason}" for reason in report.why_skipped)
        )
        log.warning("%s", message)
        if self.nonfinite_in_a_row >= self.max_nonfinite:
            raise Diverged(
                f"{message} That is {self.nonfinite_in_a_row} in a row. Look at the rewards"
                " of these groups and at actor.learning_rate; the last checkpoint holds the weights before."
            )


def _excerpt(group: Group) -> str:
    response = group.trajectories[0].text if group.trajectories else ""
    return (
        f"prompt ends {group.task.prompt[-EXCERPT:]!r}, label {group.task.label[:EXCERPT]!r}, a response begins"
        f" {response[:EXCERPT]!r}"
    )
