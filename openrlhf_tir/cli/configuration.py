"""The configuration that a command works on: that of --recipe and the flags, checked."""

from __future__ import annotations

import argparse

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
    cfg, problems = config_and_problems(args, makes_data=makes_data)
    problems.raise_any()
    return cfg


def config_and_problems(args: argparse.Namespace, *, makes_data: bool = False) -> tuple[Config, Problems]:
    """Return the configuration and its mistakes, for a command that looks for more mistakes before it raises them."""
    from .preflight import check_names

    problems = Problems()
    cfg = config_from(args, problems, makes_data=makes_data)
    check_names(cfg, problems)
    return cfg, problems
