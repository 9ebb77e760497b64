"""The whole thing, for real: Ray, vLLM, ZeRO-3 on two ranks, the sandbox server; a few steps. A learner rank is killed with -9, then the
controller: the first recovers by itself and the engine stays up, the second is resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from benchmarks.crash_trial import find
from openrlhf_tir.logs import metrics
from openrlhf_tir.replay.audit import audit
from openrlhf_tir.report import summary
from openrlhf_tir.toy.model import save_model
from openrlhf_tir.toy.task import write_data

ROOT = Path(__file__).parents[2]
STEPS = 6


def command(run_dir: Path, *more: str) -> list[str]:
    flags = {
        "--recipe": "quickstart_cpu",
        "--run-dir": str(run_dir),
        "--actor.model_name_or_path": str(run_dir / "init"),
        "--data.prompt_dataset": str(run_dir / "data/train.jsonl"),
        "--reward.name": "tests.e2e.parity_reward:parity",
        "--rollout.batch_size": "4",
        "--rollout.n_samples_per_prompt": "4",
        "--rollout.max_new_tokens": "24",
        "--train.max_steps": str(STEPS),
        "--ckpt.save_steps": "2",
        "--logger.tensorboard": "false",
    }
    return [sys.executable, "-m", "openrlhf_tir.cli", "train", *(x for pair in flags.items() for x in pair), *more]


def start(run_dir: Path, *more: str) -> subprocess.Popen:
    log = (run_dir / "log").open("a")
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    return subprocess.Popen(command(run_dir, *more), stdout=log, stderr=log, cwd=ROOT, env=env, start_new_session=True)


def wait_for_step(run_dir: Path, step: int, process: subprocess.Popen, timeout_s: float = 480) -> None:
    deadline = time.monotonic() + timeout_s
    while max(metrics.read(run_dir).get("step", [0]), default=0) < step:
        assert process.poll() is None and time.monotonic() < deadline, (run_dir / "log").read_text()[-3000:]
        time.sleep(0.2)


@pytest.mark.slow
def test_a_run_whose_learner_and_controller_are_killed_with_9_trains_every_prompt_once(tmp_path):
    save_model(tmp_path / "init", seed=0)
    write_data(tmp_path / "data", seed=0, n_train=200)

    first = start(tmp_path)
    wait_for_step(tmp_path, 2, first)
    controller = psutil.Process(first.pid)
    engine = find(controller, "rollout-0").pid
    find(controller, "learner-1").kill()
    wait_for_step(tmp_path, 4, first)
    assert find(controller, "rollout-0").pid == engine, "the engine must outlive the learner"
    os.kill(first.pid, signal.SIGKILL)
    first.wait()

    second = start(tmp_path, "--resume")
    assert second.wait(timeout=480) == 0, (tmp_path / "log").read_text()[-3000:]

    report = audit(tmp_path / "ledger.jsonl")
    assert report.errors == []
    assert report.rollbacks == 2
    assert len(report.trained) == STEPS * 4 and max(Counter(report.trained).values()) == 1
    assert report.committed_trained == report.trained

    columns = metrics.read(tmp_path)
    assert columns["step"] == list(range(1, STEPS + 1))
    assert max(columns["staleness_max"]) <= 2
    # Engine and learner agree on sampled tokens after every push (fp32).
    assert max(columns["canary_max_diff"]) <= 1e-4 and max(columns["mismatch_max"]) <= 1e-4

    s = summary.read(tmp_path)
    assert s.steps == STEPS and Path(s.model, "config.json").exists() and (tmp_path / "report.html").exists()
    _plain_transformers_loads(Path(s.model))


def _plain_transformers_loads(model: Path) -> None:
    code = (
        "import json, sys; from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "m = AutoModelForCausalLM.from_pretrained(sys.argv[1]); t = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "ids = t('User: What is 1+1?\\nAssistant:', return_tensors='pt', add_special_tokens=False)['input_ids']\n"
        "print(json.dumps(m.generate(ids, max_new_tokens=3, do_sample=False)[0].tolist()))"
    )
    out = subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True, check=True).stdout
    assert len(json.loads(out.strip().splitlines()[-1])) > 3
