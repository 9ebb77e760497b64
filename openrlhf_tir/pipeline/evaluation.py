"""Evaluation during training: measures the engines' weights on held-out problems, beside the rollouts.

An evaluation that fails is repeated, or recorded as failed, and never ends a run. One that cannot work (ConfigError)
does.

    push of v --> begin_if_pending ---- held-out problems, beside the rollouts ----> recorded as of v
                    |
                    +--> the learner trains on what staleness admits; the next push waits for the end of it all
                    +--> sync, eval.wait: the learner waits

While it runs the engines keep their weights, so each of its samples is of version v. That is a push_every as long as
staleness has room for, W + 1 batches (scheduler/staleness.py), so nothing is ever too old. A checkpoint of v is written
when the figures are there, as the best or not; one of a later version waits for them, so that no crash loses an
evaluation that a resume would not make again.

Engines, environments and verifiers fail now and then; training survives that, so looking at the model must too. A
failed evaluation has no figures, is no candidate for the best checkpoint, and the step's own checkpoint is taken as if
there had been none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..config import Config
from ..errors import ConfigError, EvaluationFailed
from ..waiting.backoff import backoff_s
from ..waiting.suspension import wait_first
from .observer import Observer

log = logging.getLogger(__name__)
PAUSE_S = 5.0
"""Seconds before the second try, then growing (backoff.py): an engine or server that went down needs time to return."""
TRIES = 2
"""Attempts before an evaluation is recorded as failed: what fails twice with a pause between is no passing fault."""
DEADLINE_S = 86_400.0
"""Seconds of one attempt. Its groups have deadlines of their own, and the watchdog sees whether they end: this one ends
only what neither of them sees, and no evaluation of many problems on few engines."""
GIVE_UP_S = 30.0
"""Seconds that a cancelled measurement has to end."""
FAILED = "eval/failed_samples"
T = TypeVar("T")


async def attempt(measure: Callable[[], Coroutine[Any, Any, T]], what: str) -> T | EvaluationFailed:
    """Measure, with repetitions.

    Args:
        measure: Makes one measurement.
        what: What is measured, for log messages.

    Returns:
        The result, or the failure of the last attempt.

    Raises:
        ConfigError: The measurement cannot work as configured, so repeating it cannot help.
    """
    for left in reversed(range(TRIES)):
        running = await _ended(measure(), DEADLINE_S)
        late = not running.done() or running.cancelled()
        failure = None if late else running.exception()
        if not late and failure is None:
            return running.result()
        error = TimeoutError() if failure is None else _inner(failure)
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, TimeoutError):
            reason = f"no answer within {DEADLINE_S:g} s"
        log.warning(
            "The evaluation of %s failed (%s)%s",
            what,
            reason,
            f"; {left} more tries." if left else ". Training goes on without it.",
            exc_info=error,
        )
        if left:
            await asyncio.sleep(backoff_s(TRIES - 1 - left, first_s=PAUSE_S))
    if isinstance(error, EvaluationFailed):
        return error
    return EvaluationFailed(f"The evaluation of {what} failed {TRIES} times, the last: {reason}.", failed=0, samples=0)


async def _ended(measuring: Coroutine[Any, Any, T], timeout_s: float) -> asyncio.Task[T]:
    """Run a measurement as a task of its own, cancel it when it takes too long, and return the ended task.

    Why a task of its own: a task group that fails while it is cancelled raises the failure only (Python < 3.13). In the
    caller's task that would swallow the cancellation of a run that is ending, which would then wait for ever.
    """
    running = asyncio.create_task(measuring, name="evaluation")
    try:
        await wait_first({running}, timeout_s)
        running.cancel()
        await asyncio.wait({running}, timeout=GIVE_UP_S)
    finally:
        running.cancel()
    return running


def _inner(error: BaseException) -> BaseException:
    """Return the first error of a task group. Raises it if it is a ConfigError."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ConfigError):
        raise error
    return error


@dataclass(slots=True, eq=False)
class Evaluation:
    """One evaluation, from its start.

    Attributes:
        version: The version that is measured.
        running: The task that measures.
        score: The metric ckpt.best_metric_key; None before the end, or if the evaluation has no such metric.
    """

    version: int
    running: asyncio.Task[None] = field(init=False)
    score: float | None = None

    async def wait_until_ended(self) -> None:
        """Wait for the end."""
        await asyncio.wait({self.running})


class Evaluator:
    """Starts evaluations, one at a time, and records their metrics."""

    def __init__(
        self,
        cfg: Config,
        measure: Callable[[], Coroutine[Any, Any, dict[str, float]]] | None,
        observer: Observer,
        tasks: asyncio.TaskGroup,
    ) -> None:
        """Create an evaluator.

        Args:
            cfg: The run's configuration.
            measure: Measures the engines' weights and returns metrics; None if the run has no evaluation.
            observer: Records the metrics.
            tasks: Runs the evaluations.
        """
        self.key = cfg.ckpt.best_metric_key
        self.waits = cfg.eval.wait or cfg.batches_ahead == 0
        """True if the learner waits for each evaluation. Without a batch ahead it has nothing else to do."""
        self.measure = measure
        self.observer = observer
        self.tasks = tasks
        self.pending: set[int] = set()
        """Versions whose evaluation is due and not recorded yet. A checkpoint of such a version says so (saver.py)."""
        self.latest: Evaluation | None = None
        self.given_up = False
        """True if the latest evaluation was given up because the run ends."""
        self._known = False
        """True once an evaluation of this run had the metric `key`."""

    @property
    def is_running(self) -> bool:
        """True while an evaluation runs. Meanwhile no weights are pushed, so that all its samples are of one
        version."""
        return self.latest is not None and not self.latest.running.done()

    async def begin_if_pending(self, version: int) -> None:
        """Start the evaluation of the weights that were just pushed, if it is pending; wait for its end if
        configured."""
        if version in self.pending:
            self.latest = Evaluation(version)
            self.latest.running = self.tasks.create_task(self._run(self.latest), name=f"evaluation of {version}")
            if self.waits:
                await self.wait_until_ended()

    async def wait_until_ended(self) -> float:
        """Wait until no evaluation runs, and return the seconds that it took. Never returns if the run ends
        meanwhile."""
        if self.latest is None or not self.is_running:
            return 0.0
        since = asyncio.get_running_loop().time()
        with self.observer.phase("wait for evaluation", self.latest.version):
            await self.latest.wait_until_ended()
            if self.given_up:
                await asyncio.get_running_loop().create_future()
        return asyncio.get_running_loop().time() - since

    def of(self, version: int) -> Evaluation | None:
        """Return the evaluation of this version if it is the latest, else None."""
        return self.latest if self.latest is not None and self.latest.version == version else None

    def may_beat(self, best: float, evaluation: Evaluation) -> bool:
        """Return True if the evaluation's weights are better than `best`, or may turn out to be."""
        undecided = not evaluation.running.done() and self.key != "none"
        return undecided or (evaluation.score is not None and evaluation.score > best)

    async def give_up(self, version: int) -> None:
        """Cancel the running evaluation because the run ends at `version`.

        A resume repeats an evaluation of that version. An evaluation of an earlier version, whose weights are gone, is
        recorded as failed.
        """
        if self.latest is None or not self.is_running:
            return
        self.given_up = True
        self.latest.running.cancel()
        await self.latest.wait_until_ended()
        if self.latest.version != version:
            log.warning(
                "The evaluation of version %d is given up: the run ends, at version %d. It counts as failed.",
                self.latest.version,
                version,
            )
            self._record(self.latest.version, {"eval/failed": 1.0, FAILED: 0.0})

    async def _run(self, evaluation: Evaluation) -> None:
        evaluation.score = await self.evaluate(evaluation.version)

    async def evaluate(self, version: int) -> float | None:
        """Measure, record the metrics or the number of missing samples, and return the metric ckpt.best_metric_key.

        Returns None if the evaluation failed or lacks that metric: it may belong to an environment all of whose samples
        were lost, or to a part of the reward that no sample has this time.

        Raises:
            ConfigError: The first complete evaluation has no such metric.
        """
        assert self.measure is not None, "an evaluation is due, but the run has no measurement"
        with self.observer.evaluating(version):
            figures = await attempt(self.measure, f"version {version}")
        if isinstance(figures, EvaluationFailed):
            self._record(version, {"eval/failed": 1.0, FAILED: float(figures.failed)})
            return None
        self._record(version, figures)
        if self.key == "none":
            return None
        if self.key not in figures and (self._known or figures.get(FAILED)):
            log.warning(
                "The evaluation of version %d has no %s: no checkpoint can be the best by it.", version, self.key
            )
            return None
        if self.key not in figures:
            raise ConfigError(
                f"ckpt.best_metric_key = {self.key!r} is no evaluation metric."
                f" Known: {', '.join(sorted(figures))}; 'none' keeps the last ones only."
            )
        self._known = True
        return figures[self.key]

    def _record(self, version: int, figures: dict[str, float]) -> None:
        """Record metrics under the version that was measured, which the learner may have left behind meanwhile."""
        self.observer.evaluated(version, figures)
        self.pending.discard(version)
