"""audit: a run's ledger -> what became of every prompt; exit code 1 when one was lost or trained twice, or the ledger
itself was changed.

A prompt that is open is an error once the run is finished; before, it is rolled, or will be taken back by a resume."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", type=Path, help="directory of a run, finished or not")


def run(args: argparse.Namespace) -> int:
    from ..errors import ConfigError
    from ..logs.lost import lost_processes
    from ..replay.audit import audit

    path = args.run_dir / "ledger.jsonl"
    if not path.exists():
        raise ConfigError(f"There is no ledger {path}. Give the directory that train wrote (--run-dir).")
    report = audit(path)
    for what, n in sorted(report.ended.items()):
        print(f"{n:8d} {what}")
    print(f"{len(report.open):8d} open (issued, not ended)")
    print(f"{len(report.waiting):8d} waiting to be issued again")
    print(f"{report.provisional:8d} ended after the last checkpoint: a resume would take them back")
    print(f"{len(report.committed_trained):8d} trained and safe in a checkpoint; {report.rollbacks} roll-backs")
    print(
        f"{report.prompts:8d} prompts were issued; the longest wait for one's next turn, or its first, was"
        f" {report.longest_wait} issues of others"
    )
    print("the run is finished" if report.finished else "the run is not finished, or was killed: --resume goes on")
    for line in lost_processes(args.run_dir):
        print(f"lost process: {line}")
    for error in report.errors:
        print(f"ERROR: {error}")
    return 1 if report.errors else 0
