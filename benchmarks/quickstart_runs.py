"""Quickstarts that benchmarks start as a user would: base models made once per seed, then runs that begin from them."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path


def add_run_flags(parser: argparse.ArgumentParser, out: str) -> None:
    """Add --seeds, --base and --out, whose default is `out`."""
    add = parser.add_argument
    add("--seeds", type=int, nargs="+", default=[42, 7, 11], help="(default: %(default)s)")
    add(
        "--base",
        type=Path,
        nargs="+",
        default=[],
        metavar="RUN_DIR",
        help="run directories whose base models to use for their seeds",
    )
    add("--out", type=Path, default=Path(out), help="where the runs go (default: %(default)s)")


def openrlhf_tir(command: str, run_dir: Path, seed: int, *flags: str) -> None:
    """One command of ours as a user would type it; exits with its error."""
    run_dir.mkdir(parents=True, exist_ok=True)
    log = run_dir / "benchmark.log"
    words = [
        sys.executable, "-m", "openrlhf_tir.cli", command, "--run-dir", str(run_dir), "--train.seed", str(seed), *flags,
    ]  # fmt: skip
    with log.open("wb") as out:
        done = subprocess.run(
            words, stdout=out, stderr=subprocess.STDOUT, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}; its output is {log}.")


def base_of(seed: int, given: dict[int, Path], out: Path) -> Path:
    """A run directory with the seed's base model and problems."""
    if seed in given:
        return given[seed]
    made = out / f"base-{seed}"
    print(f"seed {seed}: making the base model", flush=True)
    openrlhf_tir("toy-model", made, seed)
    return made


def seed_of(run_dir: Path) -> int:
    """The seed of the base model in it."""
    figures = run_dir / "base" / "figures.json"
    if not figures.exists():
        sys.exit(
            f"{run_dir} holds no finished base model ({figures} is missing)."
            " Give the run_dir of a quickstart or of `openrlhf-tir toy-model`."
        )
    return json.loads(figures.read_text())["seed"]


def train_from(base: Path, run_dir: Path, seed: int, *flags: str) -> Path:
    """A quickstart in a fresh `run_dir` that starts from the base model and problems of `base`; returns `run_dir`."""
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir(parents=True)
    for part in ("base", "data", "init"):
        shutil.copytree(base / part, run_dir / part)
    openrlhf_tir("quickstart", run_dir, seed, *flags)
    return run_dir
