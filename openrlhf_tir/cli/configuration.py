"""What commands that work on a configuration share: its flags, what its checks say, and its run directory."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..config import Config
from ..config.flags import config_from
from ..config.problems import Problems


def config_of(args: argparse.Namespace, *, makes_data: bool = False) -> Config:
    """Return the configuration of --recipe and the flags.

    Args:
        args: The parsed arguments.
        makes_data: Whether the command makes model and data by itself.

    Raises:
        ConfigError: The configuration has mistakes; one line each.
    """
    from .checks.names import check_names

    problems = Problems()
    cfg = config_from(args, problems, makes_data=makes_data)
    check_names(cfg, problems)
    problems.raise_any()
    return cfg


def print_facts(*facts: str) -> None:
    """Print what the checks before a run say, one line each."""
    for fact in facts:
        print(f"check: {fact}", flush=True)


class _Model(argparse.Action):
    """Set actor.model_name_or_path."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        namespace.overrides = {**namespace.overrides, "actor.model_name_or_path": value}


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add --model, for commands that are about one model. `add_config_flags` adds the long name."""
    parser.add_argument("--model", action=_Model, metavar="DIR_OR_NAME", help="short for --actor.model_name_or_path")


@contextmanager
def run_directory(cfg: Config) -> Iterator[None]:
    """Hold the lock of the run directory.

    What takes seconds to import is best imported inside, so that a directory in use is refused first.

    Raises:
        ConfigError: Another process works in the directory, or it holds the results of an earlier run.
    """
    from ..cluster.run_lock import run_lock
    from ..pipeline.checkpoints.lineage import check_unused

    with run_lock(cfg.run_dir, cfg.train.start_wait_s):
        check_unused(cfg)
        yield
