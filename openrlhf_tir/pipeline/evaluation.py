"""Evaluation between two steps: the engines' weights -> metrics, and whether they are the best so far, so that their checkpoint is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError

if TYPE_CHECKING:
    from .loop import Pipeline


async def evaluate(p: Pipeline) -> float | None:
    """Logs the figures; returns that of ckpt.best_metric_key if it is higher than all before. Raises ConfigError when there is no such figure."""
    with p.observer.phase("evaluate", p.version):
        figures = await p.measure()
    p.observer.metrics.log(p.version, figures)
    key = p.cfg.ckpt.best_metric_key
    if key == "none":
        return None
    if key not in figures:
        raise ConfigError(f"ckpt.best_metric_key = {key!r} is no evaluation metric. Known: {', '.join(sorted(figures))}; 'none' keeps the last ones only.")
    if figures[key] <= p.best:
        return None
    p.best = figures[key]
    return p.best
