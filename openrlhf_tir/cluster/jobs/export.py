"""The `export` command: write the model of a checkpoint, in this process alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ...config import Config
from ...errors import ConfigError
from ...pipeline.checkpoints import manifest, model_export
from ...pipeline.checkpoints.checkpoint import Checkpoints
from ...pipeline.ledger.lines import LEDGER
from . import exported

LAST = "last"
BEST = "best"


def checkpoint_of(checkpoints: Checkpoints, step: int | str) -> Path:
    """Return the checkpoint of a step, compared with its manifest.

    Args:
        checkpoints: The run's checkpoints.
        step: Number of a step, LAST or BEST.

    Raises:
        CheckpointDamaged: It is damaged.
        ConfigError: There is none.
    """
    if step == LAST:
        path = checkpoints.latest()
    elif step == BEST:
        name, _ = checkpoints.best()
        path = checkpoints.directory / name if name else None
    else:
        path = checkpoints.of_step(int(step))
    if path is None:
        raise ConfigError(
            f"{checkpoints.directory} has no checkpoint of --step {step}. There: {checkpoints}.",
            code="no_checkpoint",
        )
    manifest.verify(path)
    return path


def export(cfg: Config, checkpoint: Path, directory: Path) -> list[Path]:
    """Export the model of a verified checkpoint to `directory`, a name that is free.

    Args:
        cfg: The run's configuration.
        checkpoint: The checkpoint.
        directory: Where the model appears when it is whole.

    Returns:
        The directories of the model and, if there is one, of the average of its weights.
    """
    import torch.distributed as dist

    from ...learner.saved.policy import SavedPolicy

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        policy = SavedPolicy(cfg, checkpoint / "learner")
        asyncio.run(model_export.export(policy, directory, lambda made: _complete(cfg, made)))
    finally:
        dist.destroy_process_group()
    return exported.models(cfg, directory)


def _complete(cfg: Config, directory: Path) -> None:
    """Add what the run's prompts were; a fine-tuning, which has no ledger, keeps its model's template."""
    if (cfg.run_dir / LEDGER).exists():
        exported.complete(cfg, directory)
