"""Evaluation between two steps: the engines' weights -> metrics. It never ends a run: it is repeated, or reported as
failed.

Engines, environments and verifiers fail now and then; training survives that, so looking at the model must too. A
failed evaluation has no figures, is no candidate for the best checkpoint, and the step's own checkpoint is taken as if
there had been none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ..backoff import backoff_s
from ..config import Config
from ..errors import ConfigError, EvaluationFailed
from .observer import Observer

log = logging.getLogger(__name__)
PAUSE_S = 5.0
"""Seconds before the second try, then growing (backoff.py): what took an engine or a server down needs a moment."""
GIVE_UP_S = 30.0
"""Seconds that a measurement has to end once it is cancelled."""
FAILED = "eval/failed_samples"
T = TypeVar("T")


async def attempt(
    measure: Callable[[], Coroutine[Any, Any, T]], what: str, *, tries: int, timeout_s: float
) -> T | EvaluationFailed:
    """What `measure` gives, or why none of the `tries` gave it. Raises ConfigError only: that is the user's to mend."""
    for left in reversed(range(tries)):
        running = await _ended(measure(), timeout_s)
        late = not running.done() or running.cancelled()
        failure = None if late else running.exception()
        if not late and failure is None:
            return running.result()
        error = TimeoutError() if failure is None else _inner(failure)
        said = (
            f"no answer within eval.timeout_s = {timeout_s:g} s"
            if isinstance(error, TimeoutError)
            else f"{type(error).__name__}: {error}"
        )
        log.warning(
            "The evaluation of %s failed (%s)%s",
            what,
            said,
            f"; {left} more tries." if left else ". Training goes on without it.",
            exc_info=error,
        )
        if left:
            await asyncio.sleep(backoff_s(tries - 1 - left, first_s=PAUSE_S))
    if isinstance(error, EvaluationFailed):
        return error
    return EvaluationFailed(f"The evaluation of {what} failed {tries} times, the last: {said}.", failed=0, samples=0)


async def _ended(measuring: Coroutine[Any, Any, T], timeout_s: float) -> asyncio.Task[T]:
    """The measurement as a task that has ended, cancelled when it took too long.

    A task of its own: a task group that fails while it is cancelled tells of the failure only (Python < 3.13). In our
    task that would swallow the cancellation of a run that is ending, which would then wait for ever.
    """
    running = asyncio.create_task(measuring, name="evaluation")
    try:
        await asyncio.wait({running}, timeout=timeout_s)
        running.cancel()
        await asyncio.wait({running}, timeout=GIVE_UP_S)
    finally:
        running.cancel()
    return running


def _inner(error: BaseException) -> BaseException:
    """The first error of a task group's."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ConfigError):
        raise error
    return error


class Evaluator:
    """`measure` gives the figures of the engines' weights."""

    def __init__(
        self, cfg: Config, measure: Callable[[], Coroutine[Any, Any, dict[str, float]]] | None, observer: Observer
    ) -> None:
        self.key, self.tries, self.timeout_s = cfg.ckpt.best_metric_key, cfg.eval.max_tries, cfg.eval.timeout_s
        self.measure, self.observer = measure, observer
        self._known = False
        """An evaluation of this run had a figure of that key."""

    async def evaluate(self, version: int) -> float | None:
        """Logs the figures, or how many samples are missing; returns that of ckpt.best_metric_key, if there is one.

        Raises ConfigError when no evaluation has such a figure. One may be missing: that of an environment all of whose
        samples were lost, or of a part of the reward that no sample has this time.
        """
        assert self.measure is not None, "asked for an evaluation without a measurement"
        with self.observer.phase("evaluate", version):
            figures = await attempt(self.measure, f"version {version}", tries=self.tries, timeout_s=self.timeout_s)
        if isinstance(figures, EvaluationFailed):
            self.observer.metrics.log(version, {"eval/failed": 1.0, FAILED: float(figures.failed)})
            return None
        self.observer.metrics.log(version, figures)
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
