"""Evaluation between two steps: the engines' weights -> metrics, and whether they are the best so far, so that their checkpoint is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..config import Config
from ..errors import ConfigError
from .observer import Observer


class Evaluator:
    """`measure` gives the figures of the engines' weights. `best` is of all evaluations before, the resumed run's included."""

    def __init__(self, cfg: Config, measure: Callable[[], Awaitable[dict[str, float]]] | None, observer: Observer, best: float) -> None:
        self.key, self.measure, self.observer, self.best = cfg.ckpt.best_metric_key, measure, observer, best

    async def evaluate(self, version: int) -> float | None:
        """Logs the figures; returns that of ckpt.best_metric_key if it is higher than all before. Raises ConfigError when there is no such figure."""
        with self.observer.phase("evaluate", version):
            figures = await self.measure()
        self.observer.metrics.log(version, figures)
        if self.key == "none":
            return None
        if self.key not in figures:
            raise ConfigError(
                f"ckpt.best_metric_key = {self.key!r} is no evaluation metric. Known: {', '.join(sorted(figures))}; 'none' keeps the last ones only."
            )
        if figures[self.key] <= self.best:
            return None
        self.best = figures[self.key]
        return self.best
