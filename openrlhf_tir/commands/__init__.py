"""Commands: parsed arguments -> the library. Each is thin, and imports what it runs only when it runs."""

from __future__ import annotations

import argparse

from ..config import Config
from ..config.flags import config_from
from ..config.problems import Problems


def config_of(args: argparse.Namespace, *, makes_data: bool = False) -> Config:
    """The Config that --recipe and the flags add up to. Raises ConfigError, one line per mistake, for what no run could
    use.

    makes_data: the command makes model and data by itself.
    """
    cfg, problems = config_and_problems(args, makes_data=makes_data)
    problems.raise_any()
    return cfg


def config_and_problems(args: argparse.Namespace, *, makes_data: bool = False) -> tuple[Config, Problems]:
    """The same, for a command that looks for more mistakes before it tells them."""
    from .preflight import check_names

    problems = Problems()
    cfg = config_from(args, problems, makes_data=makes_data)
    check_names(cfg, problems)
    return cfg, problems
