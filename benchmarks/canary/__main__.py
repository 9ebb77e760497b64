"""Measure the proof of weight pushes: false alarms of right pushes, and every built-in fault that is missed.

    python -m benchmarks.canary --model smollm2 --pushes 200

collects one stage after the other (bf16 and fp32 at learning rates 1e-5 and 1e-6; fp32 gets a quarter of the pushes)
into `--out`, each in a process of its own, then judges everything that is there. A stage that was interrupted goes on.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from openrlhf_tir.cli.parent import die_with

from .collect import Setup, Stage, collect

RATES = (1e-5, 1e-6)
FP32_SHARE = 4
"""A push in bf16 for each `1 / FP32_SHARE` pushes in fp32, which takes several times as long."""


def stages(pushes: int) -> list[Stage]:
    return [
        *(Stage("bf16", lr, pushes) for lr in RATES),
        *(Stage("fp32", lr, max(1, pushes // FP32_SHARE)) for lr in RATES),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.canary", description=__doc__)
    parser.add_argument(
        "--model", default="smollm2", help="`smollm2` (a directory of that name) or a model's directory"
    )
    parser.add_argument("--pushes", type=int, default=200, help="right pushes per learning rate in bf16 [200]")
    parser.add_argument("--out", type=Path, default=Path("runs/canary"), help="directory of the stages [runs/canary]")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the texts and the data: another one makes other pushes [0]"
    )
    parser.add_argument("--minutes", type=float, default=1e9, help="end each stage after so many minutes")
    parser.add_argument("--stage", choices=[stage.name for stage in stages(1)], help="this stage alone")
    parser.add_argument("--only", choices=["collect", "judge"], help="one half of the work [both]")
    parser.add_argument("--no-faults", action="store_true", help="right pushes only")
    parser.add_argument("--in-process", type=int, metavar="PARENT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_process:
        die_with(args.in_process)
        [stage] = [stage for stage in stages(args.pushes) if stage.name == args.stage]
        collect(Setup(args.model, args.out, args.seed, faults=not args.no_faults), stage, args.minutes)
        return 0
    if args.only != "judge":
        for stage in stages(args.pushes):
            if args.stage in (None, stage.name):
                command = [sys.executable, "-m", "benchmarks.canary", *sys.argv[1:], "--in-process", str(os.getpid())]
                code = subprocess.run([*command, "--stage", stage.name]).returncode
                if code:
                    sys.exit(
                        f"The stage {stage.name} ended with exit code {code}; the reason is above. The same command"
                        " goes on; `--only judge` judges what is there."
                    )
    if args.only != "collect":
        from .summary import summary

        print(json.dumps(summary(args.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
