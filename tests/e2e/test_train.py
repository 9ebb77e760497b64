"""The whole thing, for real: Ray, vLLM, ZeRO-3, the sandbox server; a few steps. A learner rank is killed
with -9: it recovers by itself and the engine stays up. Then (long) the controller: that is resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from benchmarks.crash_trial import find
from miniatures.toy.model import save_model
from miniatures.toy.task import write_data
from openrlhf_tir.observability.report import summary
from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.telemetry import metrics
from openrlhf_tir.telemetry.lost import FILE as LOST

from ..unit.cluster.test_process_watch import told_exactly

ROOT = Path(__file__).parents[2]
STEPS = 6
EARLY = (
    *("--algo.advantage.estimator", "group_norm", "--pipeline.early_accumulation", "on"),
    # one batch under way, one group at a time in the engine: the learner waits, and its groups end one by one
    *("--pipeline.depth", "4", "--vllm.max_num_seqs", "4"),
)


def command(run_dir: Path, *more: str) -> list[str]:
    flags = {
        "--recipe": "quickstart_cpu",
        "--run-dir": str(run_dir),
        "--actor.model_name_or_path": str(run_dir / "init"),
        "--data.prompt_dataset": str(run_dir / "data/train.jsonl"),
        "--reward.name": "tests.e2e.support.parity_reward:parity",
        "--rollout.batch_size": "4",
        "--rollout.n_samples_per_prompt": "4",
        "--rollout.max_new_tokens": "24",
        "--train.max_steps": str(STEPS),
        "--ckpt.save_steps": "2",
        "--logger.tensorboard_dir": "unset",
    }
    return [sys.executable, "-m", "openrlhf_tir.cli", "train", *(x for pair in flags.items() for x in pair), *more]


def start(run_dir: Path, *more: str) -> subprocess.Popen:
    log = (run_dir / "log").open("a")
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    return subprocess.Popen(command(run_dir, *more), stdout=log, stderr=log, cwd=ROOT, env=env, start_new_session=True)


def wait_for_step(
    run_dir: Path, step: int, process: subprocess.Popen, rollbacks: int = 0, timeout_s: float = 480
) -> None:
    """Until so many steps are done, after so many roll-backs."""
    deadline, ledger = time.monotonic() + timeout_s, run_dir / "ledger.jsonl"
    while not (
        ledger.exists()
        and audit(ledger).rollbacks >= rollbacks
        and max(metrics.read(run_dir).get("step", [0]), default=0) >= step
    ):
        assert process.poll() is None and time.monotonic() < deadline, (run_dir / "log").read_text()[-3000:]
        time.sleep(0.5)  # the two files are read each time, on cores that the run needs


@pytest.fixture
def run_dir(tmp_path) -> Path:
    save_model(tmp_path / "init", seed=0)
    write_data(tmp_path / "data", seed=0, n_train=200)
    return tmp_path


def kill_the_last_rank(run_dir: Path, ranks: int, process: subprocess.Popen) -> None:
    """Behind step 2, whose checkpoint is written or about to be; the engine must outlive the learner."""
    controller = psutil.Process(process.pid)
    wait_for_step(run_dir, 2, process)
    engine = find(controller, "rollout-0").pid
    killed = find(controller, f"learner-{ranks - 1}")
    killed.kill()
    wait_for_step(run_dir, 3, process, rollbacks=1)
    with suppress(psutil.NoSuchProcess):  # the run may be over by now
        left = find(controller, "rollout-0")
        assert left is None or left.pid == engine
    lost = [json.loads(line) for line in (run_dir / LOST).read_text().splitlines()]
    assert lost and all(entry["process"].startswith("learner-rank-") for entry in lost)
    ends = {end["pid"]: end for entry in lost for end in entry["ends"]}
    assert 0 < ends[killed.pid]["peak_bytes"] < ends[killed.pid]["node_total_bytes"]
    if told_exactly():
        assert ends[killed.pid]["signal"] == signal.SIGKILL


def assert_every_prompt_is_trained_once(run_dir: Path, rollbacks: int, *, kv_kept: bool = False) -> None:
    report = audit(run_dir / "ledger.jsonl")
    assert report.errors == []
    assert report.rollbacks == rollbacks
    assert len(report.trained) == STEPS * 4 and max(Counter(report.trained).values()) == 1
    assert report.committed_trained == report.trained

    columns = metrics.read(run_dir)
    assert columns["step"] == list(range(1, STEPS + 1))
    assert max(columns["staleness_max"]) <= 2
    most = tomllib.loads((run_dir / "config.toml").read_text())["vllm"]["max_num_seqs"]
    assert all(0 < width <= most for width in columns["width"])  # as the actor told
    # Engine and learner agree on sampled tokens after every push (fp32), except over what older weights have read.
    assert max(columns["canary_max_diff"]) <= 1e-4
    assert kv_kept or max(columns["mismatch_max"]) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.extended)])
def test_a_run_whose_learner_is_killed_with_9_trains_every_prompt_once_and_exports_a_model(run_dir, ranks):
    """The learner begins on a batch while its last groups roll, before the kill and after it."""
    process = start(run_dir, *EARLY, "--actor.num_gpus_per_node", str(ranks))
    kill_the_last_rank(run_dir, ranks, process)
    assert process.wait(timeout=480) == 0, (run_dir / "log").read_text()[-3000:]
    assert_every_prompt_is_trained_once(run_dir, rollbacks=1)
    columns = metrics.read(run_dir)
    assert any(columns["accumulate_s"]) and columns["updates"] == [1.0] * STEPS
    assert all(g > 0 for g in columns["grad_norm"])
    s = summary.read(run_dir)
    assert s.steps == STEPS and (run_dir / "report.html").exists()
    # test_learner.py shows that plain transformers loads such a directory, and so do the long tests below
    assert all(Path(s.model, name).exists() for name in ("config.json", "tokenizer.json", "model.safetensors"))


@pytest.mark.long
def test_a_run_whose_pushes_keep_the_kv_cache_trains_every_prompt_once(run_dir):
    process = start(run_dir, "--pipeline.mode", "pipeline", "--pipeline.kv_after_push", "keep")
    assert process.wait(timeout=480) == 0, (run_dir / "log").read_text()[-3000:]
    assert_every_prompt_is_trained_once(run_dir, rollbacks=0, kv_kept=True)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 1])
def test_a_run_whose_learner_and_controller_are_killed_with_9_trains_every_prompt_once(run_dir, ranks):
    """Resumed on as many learner ranks, or on one of two; the average of the weights goes on either way, and is
    exported."""
    average = ("--train.ema_beta", "0.992")
    first = start(run_dir, *average)
    kill_the_last_rank(run_dir, 2, first)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    second = start(run_dir, *average, "--resume", "--actor.num_gpus_per_node", str(ranks))
    assert second.wait(timeout=480) == 0, (run_dir / "log").read_text()[-3000:]
    assert_every_prompt_is_trained_once(run_dir, rollbacks=2)
    said = (run_dir / "log").read_text().replace("\n", " ")
    assert ("(actor.num_nodes * actor.num_gpus_per_node) = 2," in said) == (ranks == 1)
    for model in (run_dir / "model", run_dir / "model_ema"):
        _plain_transformers_loads(model)


def _plain_transformers_loads(model: Path) -> None:
    """In a process of its own, which has nothing of vLLM's or of this project's registered."""
    code = (
        "import json, sys; from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "m = AutoModelForCausalLM.from_pretrained(sys.argv[1]); t = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "ids = t('User: What is 1+1?\\nAssistant:', return_tensors='pt', add_special_tokens=False)['input_ids']\n"
        "print(json.dumps(m.generate(ids, max_new_tokens=3, do_sample=False)[0].tolist()))"
    )
    out = subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True, check=True).stdout
    assert len(json.loads(out.strip().splitlines()[-1])) > 3
