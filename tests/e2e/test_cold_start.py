"""A cold start whose command is killed in its middle: the fine-tuning stops in good order and is resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from miniatures.toy.model import save_model
from openrlhf_tir.telemetry import metrics

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
DEADLINE_S = 600.0
UPDATES = 40
PARENT = """
import sys
from pathlib import Path
from openrlhf_tir.config.settings import load
from miniatures.cold_start import cold_start

root = Path(sys.argv[1])
settings = {"actor.num_gpus_per_node": 1, "sft.batch_size": 2, "sft.max_epochs": 1, "sft.max_len": 64}
cfg = load("quickstart_cpu", {"run_dir": str(root / "run"), "ckpt.save_steps": 5, **settings})
cfg.run_dir.mkdir(exist_ok=True)
print(cold_start(cfg, root / "base", root / "rows.jsonl", 2 * int(sys.argv[2])))
"""


def wait_until(condition, what: str) -> None:
    """Wait for a condition. Fails the test at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not seen within {DEADLINE_S:g} s: {what}")
        time.sleep(0.1)


def test_a_cold_start_whose_command_is_killed_goes_on_from_its_checkpoint(tmp_path):
    save_model(tmp_path / "base", 42)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": f"{i}+{i}={2 * i}"}) + "\n" for i in range(100)))
    directory = tmp_path / "run" / "cold_start"
    command = [sys.executable, "-c", PARENT, str(tmp_path), str(UPDATES)]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}

    first = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    wait_until(lambda: first.poll() is not None or (directory / "ckpt" / "latest").exists(), "a checkpoint")
    assert first.poll() is None, (tmp_path / "run" / "cold_start.log").read_text()[-3000:]
    (tuning,) = psutil.Process(first.pid).children()
    first.kill()
    first.wait()
    wait_until(lambda: not tuning.is_running() or tuning.status() == psutil.STATUS_ZOMBIE, "the end of its child")
    assert not (directory / "sft.json").exists()
    before, saved = metrics.read(directory), int((directory / "ckpt" / "latest").read_text().removeprefix("step_"))
    assert 1 <= max(before["step"]) < UPDATES

    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    after = metrics.read(directory)
    assert after["time"][:saved] == before["time"][:saved], "the updates before the checkpoint were not made again"
    assert after["step"] == list(range(1, UPDATES + 1))
    assert (directory / "model" / "model.safetensors").is_file()
    assert not (directory / "ckpt").exists()
