"""Crash matrix: `kill -9` of every process of a training run at random moments. Does it recover, and is the result the same?

    undisturbed     the toy job once: Ray, learner on two ZeRO-3 ranks, rollout actor, sandbox server, S = 0, the deterministic engine
    trial           the same job; at random moments of its training processes are killed: the controller, a rollout actor, a learner rank, or
                    the environment server. Nobody helps: `--train.max_restarts` may start it again; only if that ends, `--resume` is given.
                    With `--kills 5` one run loses all five, in a random order; one that is due while another recovers is not put off.

Passed: exit code 0, every prompt has exactly one end in the ledger (`audit`), every step has one row of metrics, and the final weights are
those of the undisturbed run, bit for bit. With `--engine vllm` batching moves last bits and with `--mode pipeline` timing decides which
version samples what: then the held-out accuracies are shown side by side (with a model that can be right, `--model`), weights are not compared.

    python -m benchmarks.crash_matrix --trials 10 --seed 0      a trial takes a minute or two on two cores, most of it imports
    python -m benchmarks.crash_matrix --trials 10 --kills 5 --steps 20
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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from openrlhf_tir.logs import metrics
from openrlhf_tir.replay.ledger import audit
from openrlhf_tir.toy.model import save_model
from openrlhf_tir.toy.task import write_data
from openrlhf_tir.weights.digest import digest_file

ROOT = Path(__file__).parents[1]
BATCH, SAMPLES = 4, 4
TARGETS = ("controller", "rollout-0", "learner-0", "learner-1", "env")
TIMEOUT_S = 900
RESUMES = 2
RESTARTS = 3


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
class Kill:
    target: str
    due: float
    """Steps of training done; the fraction is waited for by the clock."""
    at_step: int | None = None
    """The last finished step when it was killed; None: the run was over before, nothing was killed."""


@dataclass
class Trial:
    kills: list[Kill]
    seconds: float
    recovered: str
    """"alone", "resume" (somebody had to give --resume), or "" (not at all)."""
    audit_clean: bool
    weights_equal: bool | None
    accuracy: float | None

    @property
    def passed(self) -> bool:
        return bool(self.recovered) and self.audit_clean and self.weights_equal is not False


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
        "train.max_restarts": RESTARTS,
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


def last_step(run_dir: Path) -> int:
    return max(metrics.read(run_dir).get("step", [0]), default=0)


def kill_when_due(process: subprocess.Popen, run_dir: Path, kill: Kill, step_s: float) -> None:
    """Kill -9 of the target. Waits for it to be up, not for what else is being started again."""
    deadline = time.monotonic() + TIMEOUT_S

    def goes_on() -> bool:
        return process.poll() is None and time.monotonic() < deadline

    while not ((run_dir / "ledger.jsonl").exists() and last_step(run_dir) >= int(kill.due)) and goes_on():
        time.sleep(0.1)
    time.sleep(kill.due % 1 * step_s)
    while goes_on():
        if (victim := find(controller_of(psutil.Process(process.pid)), kill.target)) is not None:
            kill.at_step = last_step(run_dir)
            victim.kill()
            return
        time.sleep(0.1)


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


def trial(run_dir: Path, job: Job, kills: list[Kill], step_s: float, expected: str) -> Trial:
    run_dir.mkdir()
    args, log, began = command(run_dir, job), run_dir / "log", time.monotonic()
    process = start(args, log)
    for kill in kills:
        kill_when_due(process, run_dir, kill, step_s)
    code, recovered = end(process), "alone"
    for _ in range(RESUMES):
        if code == 0:
            break
        code, recovered = end(start([*args, "--resume"], log)), "resume"
    seconds = round(time.monotonic() - began, 1)
    if code != 0:
        return Trial(kills, seconds, "", False, False if job.exact else None, None)
    digest, accuracy = outcome(run_dir)
    return Trial(kills, seconds, recovered, clean(run_dir, job.steps), digest == expected if job.exact else None, accuracy)


def undisturbed(run_dir: Path, job: Job) -> tuple[str, float | None, float]:
    """Digest of the final weights, accuracy, seconds of training."""
    run_dir.mkdir()
    code = end(start(command(run_dir, job), run_dir / "log"))
    if code != 0 or not clean(run_dir, job.steps):
        raise SystemExit(f"The undisturbed run ended with {code}:\n{(run_dir / 'log').read_text()[-3000:]}")
    return *outcome(run_dir), json.loads((run_dir / "summary.json").read_text())["seconds"]["training"]


def planned(args: argparse.Namespace, rng: random.Random) -> Iterator[list[Kill]]:
    """The kills of each trial, in the order in which they are due. Targets take turns where a trial has only one."""
    if args.quick:
        targets = [["controller"], ["learner-1"], ["env"]]
    else:
        targets = [[TARGETS[i % len(TARGETS)]] if args.kills == 1 else rng.sample(TARGETS, args.kills) for i in range(args.trials)]
    for wanted in targets:
        yield [Kill(target, round(due, 2)) for target, due in zip(wanted, sorted(rng.uniform(0, args.steps) for _ in wanted), strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--kills", type=int, default=1, choices=range(1, len(TARGETS) + 1), help="in each trial, of different processes")
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
    trials = []
    for i, kills in enumerate(planned(args, random.Random(args.seed))):
        trials.append(done := trial(work / f"trial_{i:02d}", job, kills, seconds / args.steps, digest))
        print(f"{i:3d} {json.dumps(asdict(done))}", flush=True)
    passed = [t for t in trials if t.passed]
    if len(passed) == len(trials) and not args.keep:
        shutil.rmtree(work)
    else:
        print(f"runs: {work}")
    killed = Counter(k.target for t in trials for k in t.kills if k.at_step is not None)
    summary = {
        "trials": len(trials),
        "killed": killed.total(),
        "killed_by_target": dict(sorted(killed.items())),
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
