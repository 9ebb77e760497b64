"""One trial of the crash matrix: a training run as processes, faults that befall them, and what came of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.telemetry import metrics
from openrlhf_tir.weights.digest import digest_file

ROOT = Path(__file__).parents[1]
MARK = "TIR_TRIAL"
"""Environment variable of every process of a run, by which they are found after it: its log."""
BATCH, SAMPLES = 4, 4
TARGETS = ("controller", "rollout-0", "learner-0", "learner-1", "env")
TIMEOUT_S = 900
RESUMES = 2
RESTARTS = 3
FREEZE_S = 60.0
DEADLINES = {
    "timeouts.push_s": 40,
    "timeouts.learner_s": 40,
    "env.step_timeout_s": 10,
}
"""Shorter than a freeze: what waits for the frozen process has to act, and what is thawed then is late. Only an outage
of an environment is waited for longer (EnvClient)."""


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
class Fault:
    """`kill`: kill -9. `freeze`: SIGSTOP, and SIGCONT after FREEZE_S, if the process is still there then."""

    target: str
    due: float
    """Steps of training done; the fraction is waited for by the clock."""
    what: Literal["kill", "freeze"] = "kill"
    at_step: int | None = None
    """The last finished step when it happened; None: the run was over before, nothing happened."""


@dataclass
class Trial:
    faults: list[Fault]
    seconds: float
    recovered: str
    """"alone", "resume" (somebody had to give --resume), or "" (not at all)."""
    said: str
    """The last line of a run that did not recover alone: the error that it named."""
    audit_clean: bool
    weights_equal: bool | None
    accuracy: float | None

    @property
    def passed(self) -> bool:
        return bool(self.recovered) and self.audit_clean and self.weights_equal is not False


def command(run_dir: Path, job: Job, deadlines: Mapping[str, float] = DEADLINES) -> list[str]:
    """Every trajectory must be valid (min_valid): a group that a dead sandbox cut short is rolled again, not trained
    with fewer.

    `deadlines`: {} for a run in which nothing freezes; those that ship with the package bear with a busy machine.
    """
    flags = {
        "recipe": "quickstart_cpu",
        "run-dir": run_dir,
        "actor.model_name_or_path": job.model or job.data / "init",
        "data.prompt_dataset": job.data / "train.jsonl",
        "pipeline.mode": job.mode,
        "rollout.engine": job.engine,
        "train.full_determinism_enable": "true",
        "rollout.batch_size": BATCH,
        "rollout.n_samples_per_prompt": SAMPLES,
        "rollout.min_valid": SAMPLES,
        "train.max_steps": job.steps,
        "train.max_restarts": RESTARTS,
        **deadlines,
        "ckpt.save_steps": 2,
        "logger.tensorboard_dir": "unset",
    }
    if job.model is None:
        flags |= {"reward.name": "tests.e2e.support.parity_reward:parity", "rollout.max_new_tokens": 24}
    elif not job.exact:
        flags |= {"eval.dataset": job.data / "test.jsonl"}
    return [
        sys.executable,
        "-m",
        "openrlhf_tir.cli",
        "train",
        *(str(x) for name, value in flags.items() for x in (f"--{name}", value)),
    ]


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
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu", MARK: str(log)}
    with log.open("a") as out:
        return subprocess.Popen(args, stdout=out, stderr=out, cwd=ROOT, env=env, start_new_session=True)


def last_step(run_dir: Path) -> int:
    return max(metrics.read(run_dir).get("step", [0]), default=0)


def strike(process: subprocess.Popen, run_dir: Path, fault: Fault, step_s: float) -> None:
    """The fault, when it is due. Waits for its target to be up, not for what else is being started again."""
    deadline = time.monotonic() + TIMEOUT_S

    def goes_on() -> bool:
        return process.poll() is None and time.monotonic() < deadline

    while not ((run_dir / "ledger.jsonl").exists() and last_step(run_dir) >= int(fault.due)) and goes_on():
        time.sleep(0.1)
    time.sleep(fault.due % 1 * step_s)
    while goes_on():
        # The process that was found may end by itself meanwhile, if an earlier fault costs it.
        with suppress(psutil.NoSuchProcess):
            if (victim := find(controller_of(psutil.Process(process.pid)), fault.target)) is not None:
                step = last_step(run_dir)
                if fault.what == "kill":
                    victim.kill()
                else:
                    freeze(victim)
                fault.at_step = step
                return
        time.sleep(0.1)


def freeze(victim: psutil.Process) -> None:
    """It stands still for FREEZE_S. Whoever waits for it may have killed it meanwhile."""
    victim.suspend()
    time.sleep(FREEZE_S)
    with suppress(psutil.NoSuchProcess):
        victim.resume()


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
    return (
        ended
        and once
        and metrics.read(run_dir)["step"] == [*range(0 if "eval/accuracy" in metrics.read(run_dir) else 1, steps + 1)]
    )


def outcome(run_dir: Path) -> tuple[str, float | None]:
    """Digest of the final weights; held-out accuracy if it was measured."""
    trained = json.loads((run_dir / "summary.json").read_text())["trained"]
    return digest_file(run_dir / "model" / "model.safetensors"), trained and trained["accuracy"]


def trial(run_dir: Path, job: Job, faults: list[Fault], step_s: float, expected: str) -> Trial:
    run_dir.mkdir()
    args, log, began = command(run_dir, job), run_dir / "log", time.monotonic()
    process = start(args, log)
    for fault in faults:
        strike(process, run_dir, fault, step_s)
    code, recovered, said = end(process), "alone", ""
    for _ in range(RESUMES):
        if code == 0:
            break
        said = said or last_line(log)
        code, recovered = end(start([*args, "--resume", "--train.resume_or_start"], log)), "resume"
    seconds = round(time.monotonic() - began, 1)
    if code != 0:
        return Trial(faults, seconds, "", said, False, False if job.exact else None, None)
    digest, accuracy = outcome(run_dir)
    return Trial(
        faults, seconds, recovered, said, clean(run_dir, job.steps), digest == expected if job.exact else None, accuracy
    )


def lives(process: psutil.Process) -> bool:
    """Return False for a process that is gone, and for one that only its parent has yet to notice."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def of_run(run_dir: Path) -> list[psutil.Process]:
    """Return the living processes that carry the run's mark in their environment, whoever is their parent now."""
    mark = f"{MARK}={run_dir / 'log'}".encode()
    marked = []
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                marked.append(psutil.Process(pid))
    return [process for process in marked if lives(process)]


@contextmanager
def kill_runs_at_an_error(directory: Path) -> Iterator[None]:
    """Kill the run of a directory, or the runs of those below it, if the block does not come to its end, as at Ctrl-C:
    a run has a session of its own, so that no signal to the benchmark reaches it."""
    try:
        yield
    except BaseException:
        kill_runs(directory)
        raise


def kill_runs(directory: Path) -> None:
    """Kill what lives of the run of a directory, or of the runs of those below it."""
    for log in [*directory.glob("log"), *directory.glob("*/log")]:
        for process in of_run(log.parent):
            with suppress(psutil.Error):
                process.kill()


def last_line(log: Path) -> str:
    return next((line.strip() for line in reversed(log.read_text(errors="replace").splitlines()) if line.strip()), "")


def undisturbed(run_dir: Path, job: Job) -> tuple[str, float | None, float]:
    """Digest of the final weights, accuracy, seconds of training."""
    run_dir.mkdir()
    code = end(start(command(run_dir, job), run_dir / "log"))
    if code != 0 or not clean(run_dir, job.steps):
        raise SystemExit(f"The undisturbed run ended with {code}:\n{(run_dir / 'log').read_text()[-3000:]}")
    return *outcome(run_dir), json.loads((run_dir / "summary.json").read_text())["seconds"]["training"]
