"""Crash matrix: `kill -9` of every process of a training run at random moments. Does it recover, and is the result the same?

    undisturbed     the toy job once: Ray, learner on two ZeRO-3 ranks, rollout actor, sandbox server, S = 0, the deterministic engine
    trial           the same job; at a random moment of its training one process is killed: the controller, a rollout actor, a learner rank, or
                    the environment server. Nobody helps: `--train.max_restarts` may start it again; only if that ends, `--resume` is given.

Passed: exit code 0, every prompt has exactly one end in the ledger (`audit`), every step has one row of metrics, and the final weights are
those of the undisturbed run, bit for bit. With `--engine vllm` batching moves last bits and with `--mode pipeline` timing decides which
version samples what: then the held-out accuracies are shown side by side (with a model that can be right, `--model`), weights are not compared.

    python -m benchmarks.crash_matrix --trials 10 --seed 0      a trial takes a minute or two on two cores
    python -m benchmarks.crash_matrix --quick                   3 trials
    python -m benchmarks.crash_matrix --model runs/quickstart/base --engine vllm --mode pipeline --steps 30

Without `--model` the policy has random weights, calls no tool, and the reward is the parity of its tokens: every process works, quickly.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from openrlhf_tir.observability import metrics
from openrlhf_tir.replay.ledger import audit
from openrlhf_tir.toy.model import save_model
from openrlhf_tir.toy.task import write_data
from openrlhf_tir.weights.digest import digest_file

ROOT = Path(__file__).parents[1]
BATCH, SAMPLES = 4, 4
TARGETS = ("controller", "rollout-0", "learner-0", "learner-1", "env")
TIMEOUT_S = 900
RESUMES = 2


@dataclass(frozen=True)
class Job:
    """What is trained: the same in every run."""

    data: Path
    model: Path | None
    engine: str
    mode: str
    steps: int

    @property
    def exact(self) -> bool:
        return self.engine == "torch" and self.mode == "sync"


@dataclass
class Trial:
    target: str
    after_s: float
    """Seconds of training after which it was killed."""
    seconds: float
    recovered: str
    """"alone", "resume" (somebody had to give --resume), or "" (not at all)."""
    audit_clean: bool
    weights_equal: bool | None
    accuracy: float | None
    at_step: int | None
    """The last finished step when it was killed; None: the run was over before, nothing was killed."""


def command(run_dir: Path, job: Job) -> list[str]:
    """Every trajectory must be valid (min_valid): a group that a dead sandbox cut short is rolled again, not trained with fewer."""
    flags = {
        "recipe": "quickstart_cpu",
        "run-dir": run_dir,
        "actor.model_name_or_path": job.model or job.data / "init",
        "data.prompt_dataset": job.data / "train.jsonl",
        "pipeline.mode": job.mode,
        "rollout.engine": job.engine,
        "rollout.per_request_seeds": "true",
        "rollout.batch_size": BATCH,
        "rollout.n_samples_per_prompt": SAMPLES,
        "rollout.min_valid": SAMPLES,
        "train.max_steps": job.steps,
        "train.max_restarts": 3,
        "ckpt.save_steps": 2,
        "logger.tensorboard": "false",
    }
    if job.model is None:
        flags |= {"reward.name": "tests.e2e.parity_reward:parity", "rollout.max_new_tokens": 24}
    elif not job.exact:
        flags |= {"eval.dataset": job.data / "test.jsonl"}
    return [sys.executable, "-m", "openrlhf_tir.cli", "train", *(str(x) for name, value in flags.items() for x in (f"--{name}", value))]


def controller_of(launcher: psutil.Process) -> psutil.Process | None:
    """With train.max_restarts the command waits for a child that does the work."""
    return next((p for p in launcher.children() if "openrlhf_tir.cli" in _words(p)), None)


def find(controller: psutil.Process | None, target: str) -> psutil.Process | None:
    """The process of `target`, the controller or one below it; None while it is not up."""
    if target == "controller" or controller is None:
        return controller
    below = controller.children(recursive=True)
    if target == "env":
        return next((p for p in below if "env_servers.python_tir" in _words(p)), None)
    kind, index = target.split("-")
    title = {"learner": "ray::LearnerRank", "rollout": "ray::RolloutActor"}[kind]
    found = sorted((p for p in below if _words(p).startswith(title)), key=lambda p: p.pid)
    return found[int(index)] if int(index) < len(found) else None


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def start(args: list[str], log: Path) -> subprocess.Popen:
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    with log.open("a") as out:
        return subprocess.Popen(args, stdout=out, stderr=out, cwd=ROOT, env=env, start_new_session=True)


def kill_at(process: subprocess.Popen, run_dir: Path, target: str, after_s: float) -> int | None:
    """Kill -9 `after_s` seconds after training began; returns the last finished step then, None when the run was over before."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (run_dir / "ledger.jsonl").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.1)
    time.sleep(after_s)
    victim = None
    while victim is None and process.poll() is None and time.monotonic() < deadline:
        victim = find(controller_of(psutil.Process(process.pid)), target)
        time.sleep(0.1)
    step = max(metrics.read(run_dir).get("step", [0]), default=0)
    if victim is None:
        return None
    victim.kill()
    return step


def end(process: subprocess.Popen) -> int:
    """Exit code; a run that does not end is killed with all its processes, and counts as failed."""
    try:
        return process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def clean(run_dir: Path, steps: int) -> bool:
    """Every prompt ended once, all of it is committed, and every step has its row."""
    report = audit(run_dir / "ledger.jsonl")
    once = len(report.trained) == steps * BATCH and max(Counter(report.trained).values()) == 1
    ended = not report.errors and not report.open and report.committed_trained == report.trained
    return ended and once and metrics.read(run_dir)["step"] == [*range(0 if "eval/accuracy" in metrics.read(run_dir) else 1, steps + 1)]


def outcome(run_dir: Path) -> tuple[str, float | None]:
    """Digest of the final weights; held-out accuracy if it was measured."""
    trained = json.loads((run_dir / "summary.json").read_text())["trained"]
    return digest_file(run_dir / "model" / "model.safetensors"), trained and trained["accuracy"]


def trial(run_dir: Path, job: Job, target: str, after_s: float, expected: str) -> Trial:
    run_dir.mkdir()
    args, log, began = command(run_dir, job), run_dir / "log", time.monotonic()
    process = start(args, log)
    step = kill_at(process, run_dir, target, after_s)
    code, recovered = end(process), "alone"
    for _ in range(RESUMES):
        if code == 0:
            break
        code, recovered = end(start([*args, "--resume"], log)), "resume"
    seconds = round(time.monotonic() - began, 1)
    if code != 0:
        return Trial(target, round(after_s, 2), seconds, "", False, False if job.exact else None, None, step)
    digest, accuracy = outcome(run_dir)
    return Trial(target, round(after_s, 2), seconds, recovered, clean(run_dir, job.steps), digest == expected if job.exact else None, accuracy, step)


def undisturbed(run_dir: Path, job: Job) -> tuple[str, float | None, float]:
    """Digest of the final weights, accuracy, seconds of training."""
    run_dir.mkdir()
    code = end(start(command(run_dir, job), run_dir / "log"))
    if code != 0 or not clean(run_dir, job.steps):
        raise SystemExit(f"The undisturbed run ended with {code}:\n{(run_dir / 'log').read_text()[-3000:]}")
    return *outcome(run_dir), json.loads((run_dir / "summary.json").read_text())["seconds"]["training"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="3 trials")
    parser.add_argument("--engine", choices=("torch", "vllm"), default="torch")
    parser.add_argument("--mode", choices=("sync", "pipeline"), default="sync")
    parser.add_argument("--model", type=Path, help="a cold-started base model, e.g. runs/quickstart/base; default: random weights")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--keep", type=Path, help="an empty directory for the runs; default: a temporary one, removed unless something failed")
    args = parser.parse_args()
    work = args.keep or Path(tempfile.mkdtemp(prefix="crash_matrix_"))
    work.mkdir(parents=True, exist_ok=True)
    save_model(work / "init", seed=0)
    write_data(work, seed=0, n_train=200)

    job = Job(work, args.model and args.model.absolute(), args.engine, args.mode, args.steps)
    digest, accuracy, seconds = undisturbed(work / "undisturbed", job)
    print(f"undisturbed: {seconds:.1f} s of training", flush=True)
    rng, trials = random.Random(args.seed), []
    for i in range(3 if args.quick else args.trials):
        target = TARGETS[i % len(TARGETS)] if not args.quick else ("controller", "learner-1", "env")[i]
        done = trial(work / f"trial_{i:02d}", job, target, rng.uniform(0, seconds), digest)
        trials.append(done)
        print(f"{i:3d} {json.dumps(asdict(done))}", flush=True)
    passed = [t for t in trials if t.recovered and t.audit_clean and t.weights_equal is not False]
    if len(passed) == len(trials) and not args.keep:
        shutil.rmtree(work)
    else:
        print(f"runs: {work}")
    summary = {
        "trials": len(trials),
        "killed": sum(t.at_step is not None for t in trials),
        "passed": len(passed),
        "recovered_alone": sum(t.recovered == "alone" for t in trials),
        "recovered_by_resume": sum(t.recovered == "resume" for t in trials),
        "audits_clean": sum(t.audit_clean for t in trials),
        "weights_equal": sum(bool(t.weights_equal) for t in trials) if job.exact else None,
        "accuracy_undisturbed": accuracy,
        "accuracies": [t.accuracy for t in trials] if accuracy is not None else None,
        "engine": args.engine,
        "mode": args.mode,
        "steps": args.steps,
        "seed": args.seed,
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
