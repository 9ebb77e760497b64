"""Learner: TrainBatch -> new weights. The pipeline sees this Protocol only; the real one is a group of Ray actors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from ..types import StepReport, TrainBatch


class Learner(Protocol):
    version: int
    """Number of updates behind the current weights."""

    async def step(self, batch: TrainBatch) -> StepReport:
        """One optimiser update on the whole batch. Raises InfraError when a rank died."""

    async def publish(self, path: Path) -> str:
        """Write the full weights, HF names, as safetensors to `path`; return their digest."""

    async def score(self, sequences: list[list[int]]) -> list[Any]:
        """Log-prob of every token of each sequence but the first, under the current weights: list of [T-1] float32."""

    async def save(self, directory: Path) -> None:
        """Every rank's share of model, optimiser, scheduler and RNG into `directory`. Returns when all ranks have copied theirs to host
        memory; the call is on its way to them before the first await. They are written in the background."""

    async def written(self) -> None:
        """Every rank's files of the last `save` are safe on disk. Raises OSError when a disk refused."""

    async def load(self, directory: Path) -> int:
        """Restore what `save` wrote; returns the version."""

    async def export(self, directory: Path) -> None:
        """A directory that plain transformers loads: weights, config, tokenizer."""
