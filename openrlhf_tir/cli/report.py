"""The `report` command: write report.html and the curves of a run again."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    parser.add_argument("run_dir", type=Path, help="directory of a run, finished or not")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from ..observability.report.build import build_report

    print(build_report(args.run_dir))
    return 0
