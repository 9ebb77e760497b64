"""`openrlhf-tir reproduce` from the outside, on the real stack: base model, RL, verdict, page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from miniatures.reproduce.run import SUMMARY

ROOT = Path(__file__).parents[3]
AT_MOST_S = 3600.0
"""Some seven minutes on two quiet cores, base model included."""


def reproduce(*words: str, cwd: Path) -> subprocess.CompletedProcess:
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    return subprocess.run(
        [sys.executable, "-m", "openrlhf_tir.cli", "reproduce", *words],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=AT_MOST_S,
    )


@pytest.mark.long
def test_the_effect_of_zerotir_is_seen_and_the_same_command_again_trains_nothing(tmp_path):
    done = reproduce("zerotir", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    out = tmp_path / "runs/reproduce/zerotir"
    summary = json.loads((out / SUMMARY).read_text())
    (seed,) = summary["seeds"]
    assert list(summary) == ["name", "claim", "seen", "seeds", "seconds"] and seed["seed"] == 42
    assert summary["seen"] is seed["seen"] is True, done.stdout[-2000:]
    assert re.search(r"\b1 \w+ 1\b", (out / "index.html").read_text())
    assert (out / "curves.png").stat().st_size > 5_000
    figures, metrics = seed["arms"]["rl"], out / "seed-42/rl/metrics.jsonl"
    assert figures["accuracy"] >= 0.9 > figures["accuracy_before"]
    before = metrics.stat().st_mtime_ns
    again = reproduce("zerotir", cwd=tmp_path)
    assert again.returncode == 0 and metrics.stat().st_mtime_ns == before
    assert json.loads((out / SUMMARY).read_text()) == summary
