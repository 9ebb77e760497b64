"""The `audit` command: report what became of every prompt of a run.

The exit code is 1 if a prompt was lost or trained twice, or if the ledger itself was changed. An open prompt is an
error only once the run is finished: before that it is rolling, or a resume takes it back.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    parser.add_argument("run_dir", type=Path, help="directory of a run, finished or not")


def run(args: argparse.Namespace) -> int:
    """Print the audit and return the exit code.

    Raises:
        ConfigError: The directory has no ledger.
    """
    from ..errors import ConfigError
    from ..pipeline.ledger.audit import audit
    from ..pipeline.ledger.lines import LEDGER
    from ..telemetry.lost import lost_processes

    path = args.run_dir / LEDGER
    if not path.exists():
        raise ConfigError(f"There is no ledger {path}. Give the directory that train wrote (--run-dir).")
    report = audit(path)
    for end, count in sorted(report.ended.items()):
        print(f"{count:8d} {end}")
    print(f"{len(report.open):8d} open (issued, not ended)")
    print(f"{len(report.waiting):8d} waiting to be issued again")
    print(f"{report.provisional:8d} ended after the last checkpoint; a resume takes them back")
    print(f"{len(report.committed_trained):8d} trained and safe in a checkpoint; {report.rollbacks} roll-backs")
    print(f"{report.prompts:8d} prompts were issued at least once")
    print(f"{report.longest_wait:8d} issues of other prompts, at most, between two issues of the same prompt")
    if report.finished:
        print("The run is finished.")
    else:
        print("The run is not finished, or was killed: --resume continues it.")
    for line in lost_processes(args.run_dir):
        print(f"lost process: {line}")
    for error in report.errors:
        print(f"ERROR: {error}")
    return 1 if report.errors else 0
