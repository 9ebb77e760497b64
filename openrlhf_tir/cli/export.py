"""The `export` command: write the model of a checkpoint as a Hugging Face directory, without GPUs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def _step(text: str) -> int | str:
    from ..config.numbers import whole

    return text if text in ("last", "best") else whole(at_least=0)(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="directory of a run, running or finished")
    parser.add_argument(
        "--step", type=_step, default="last", metavar="K", help="step of the checkpoint, last or best [last]"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory to write; must not exist")


def run(args: argparse.Namespace) -> int:
    """Export the model and return the exit code.

    Raises:
        CheckpointDamaged: The checkpoint is damaged.
        ConfigError: There is no such checkpoint, the model that the run started from is gone, or DIR is in use.
        InfraError: The disk refused.
    """
    from ..cluster.jobs.export import checkpoint_of, export
    from ..config.settings import load_former
    from ..errors import ConfigError, InfraError
    from ..pipeline.checkpoints.lineage import checkpoints_of
    from .checks.model import policy_directory

    # The directory may have been moved or copied since the run.
    cfg = load_former(args.run_dir / "config.toml").model_copy(update={"run_dir": args.run_dir})
    if args.out.exists():
        raise ConfigError(f"{args.out} exists. Give another --out, or remove it first.", code="path", setting="--out")
    policy_directory(cfg)
    if cfg.train.ema_beta and cfg.ds.zero_stage != 3:
        cfg = cfg.model_copy(update={"train": cfg.train.model_copy(update={"ema_beta": None})})
        print(
            "The average (train.ema_beta) of a run with ds.zero_stage 2 is exported by a resume only.", file=sys.stderr
        )
    checkpoint = checkpoint_of(checkpoints_of(cfg), args.step)
    try:
        models = export(cfg, checkpoint, args.out)
    except OSError as error:
        raise InfraError(f"{checkpoint.name} could not be exported to {args.out}: {error}.") from error
    for path in models:
        print(f"{checkpoint.name}: {path}")
    return 0
