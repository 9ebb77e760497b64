"""Commands: parsed arguments -> the library. Each is thin, and imports what it runs only when it runs."""

from __future__ import annotations

import argparse

from ..config import Config
from ..config.flags import overrides_of
from ..config.settings import load


def config_of(args: argparse.Namespace) -> Config:
    """The Config that --recipe and the flags add up to."""
    return load(args.recipe, overrides_of(args))
