"""Attempt: one arm and one seed of the real model's quickstart, run as a user would type it -> its figures as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from datetime import date
from itertools import zip_longest
from pathlib import Path
from typing import Any

from miniatures import seeds
from miniatures.end_process import end_process
from miniatures.prepare import BASE
from miniatures.reproduce.arms import NO_TOOL
from miniatures.reproduce.commands import STOP_S
from miniatures.results import FIGURES, Evaluation, evaluation_in, evaluations
from miniatures.tasks import NUMBERS, TASKS
from openrlhf_tir.machine.files import replace_text
from openrlhf_tir.machine.process_memory import PssSampler
from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.telemetry import metrics

REPO = Path(__file__).resolve().parents[2]
UNTRAINED = "untrained"
"""Directory, inside a run directory, of the evaluation of the model without its cold start."""
UNTRAINED_FIGURES = "untrained.json"
"""File, beside that directory, of its figures."""
EVAL_S = 1800.0
"""Seconds after which that evaluation, some two minutes, is taken for stuck."""
TOOL = "tool"
ARMS: dict[str, tuple[str, ...]] = {TOOL: (), "no_tool": NO_TOOL}
"""Arm -> the flags by which it differs from the quickstart."""


def digest(arm: str, flags: tuple[str, ...], task: str = NUMBERS) -> str:
    """Return the digest of the arm's settings."""
    real_task = TASKS[task]
    return seeds.digest(real_task, real_task.recipe, (*ARMS[arm], *flags), real_task.cold_start)


@dataclass
class Attempt:
    """What one run came to. Fractions are of held-out problems, means over kinds of equally many rows.

    Attributes:
        task: A key of TASKS.
        arm: A key of ARMS.
        seed: train.seed of the run.
        settings: Digest of the settings that it ran with.
        status: Exit code of the command; 0 where it came to its end.
        minutes: Wall time from the command to its end, set-up of the model included, that of the environment not.
        peak_pss_gb: Largest sum of PSS over all of its processes, in 10^9 bytes.
        false_alarms: Pushes whose proof was refused at first. All weights that are pushed here are right.
        open: Groups that the ledger holds as issued and not ended.
        errors: The ledger's errors, failed groups by reason, and what the command said if it failed.
        untrained: Accuracy of the model as it was packaged, of a task with a cold start: by "sampled" and "greedy" on
            trained kinds, on those never trained, and by kind.
        before, after: The same at the first update, after the cold start if there is one, and at the end.
        steps: Accuracy of what was sampled for each update, with seconds of wall time and of the learner's step.
        flags: Flags of the quickstart besides the arm's.
        peak_by_process: The processes of `peak_pss_gb` that held at least 0.05 of it.
        commit: The checkout's commit, with "+" if files differ from it.
        date: Day of the end, as YYYY-MM-DD.
        cpu: Name of the processor.
        precision: ds.param_dtype of the run: the quickstart takes fp32 where the processor is slow in bf16. Empty where
            it was not kept.
        load: Average number of runnable processes of the machine at the start and at the end.
    """

    arm: str
    seed: int
    settings: str
    status: int
    minutes: float
    peak_pss_gb: float
    cpu: str
    load: list[float]
    false_alarms: int = 0
    open: int = 0
    errors: list[str] = field(default_factory=list)
    task: str = NUMBERS
    untrained: dict[str, Any] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)
    steps: list[dict[str, float]] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    peak_by_process: dict[str, float] = field(default_factory=dict)
    precision: str = ""
    commit: str = ""
    date: str = ""

    @property
    def complete(self) -> bool:
        """Whether the run came to its end and was evaluated before and after, and without its cold start if it has
        one."""
        evaluated = bool(self.before) and bool(self.after)
        if TASKS[self.task].cold_start:
            evaluated = evaluated and bool(self.untrained)
        return self.status == 0 and evaluated


def path_of(results: Path, arm: str, seed: int, settings: str, task: str = NUMBERS) -> Path:
    """Return where the attempt is kept. Other settings have other files."""
    of_task = "" if task == NUMBERS else f"{task}-"
    return results / f"{of_task}{arm}-{settings[:8]}-{seed}.json"


def stored(path: Path) -> Attempt | None:
    """Return the attempt that an earlier call finished; None where there is none, or it did not come to its end."""
    if not path.is_file():
        return None
    attempt = Attempt(**json.loads(path.read_text()))
    return attempt if attempt.complete else None


def make(arm: str, seed: int, settings: str, flags: tuple[str, ...], run_dir: Path, task: str = NUMBERS) -> Attempt:
    """Run the quickstart for `arm` and `seed` and return what it came to. Its output goes to RUN_DIR.log."""
    command = [
        "bash", str(REPO / "train_scripts" / "quickstart.sh"), "--model", "smollm2", "--task", task,
        "--run-dir", str(run_dir), "--train.seed", str(seed), "--train.overwrite", *ARMS[arm], *flags,
    ]  # fmt: skip
    log = run_dir.with_name(f"{run_dir.name}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    load_before = os.getloadavg()[0]
    started = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=REPO, start_new_session=True)
        try:
            with PssSampler(root_pid=process.pid) as pss:
                status = process.wait()
        finally:
            end_process(process, STOP_S)
    attempt = Attempt(
        task=task,
        arm=arm,
        seed=seed,
        settings=settings,
        status=status,
        minutes=round((time.monotonic() - started) / 60, 2),
        peak_pss_gb=round(pss.peak_gib * 2**30 / 1e9, 2),
        cpu=cpu_name(),
        load=[round(load_before, 1), round(os.getloadavg()[0], 1)],
        flags=list(flags),
        commit=_commit(),
        date=date.today().isoformat(),
        peak_by_process={
            name: round(gib * 2**30 / 1e9, 2) for name, gib in pss.peak_by_process.items() if gib * 2**30 / 1e9 >= 0.05
        },
    )
    if status:
        attempt.errors.append(f"exit code {status}: {_last_line(log)}")
    elif TASKS[task].cold_start:
        _evaluate_untrained(attempt, run_dir, log)
    read_run(attempt, run_dir)
    return attempt


def _evaluate_untrained(attempt: Attempt, run_dir: Path, log: Path) -> None:
    """Evaluate the model that the cold start began with, by the run's own settings. What goes wrong is an error of the
    attempt, whose run is over by then and stays."""
    (run_dir / UNTRAINED_FIGURES).unlink(missing_ok=True)  # of an earlier run in this directory
    command = [
        sys.executable, "-m", "openrlhf_tir.cli", "eval", "--recipe", str(run_dir / "config.toml"),
        "--model", str(run_dir / BASE), "--run-dir", str(run_dir / UNTRAINED),
        "--out", str(run_dir / UNTRAINED_FIGURES),
    ]  # fmt: skip
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=REPO, start_new_session=True)
        try:
            status = process.wait(EVAL_S)
        except subprocess.TimeoutExpired:
            attempt.errors.append(f"evaluation of the untrained model: it has not ended after {EVAL_S:g} s")
            return
        finally:
            end_process(process, STOP_S)
    if status:
        attempt.errors.append(f"evaluation of the untrained model: exit code {status}: {_last_line(log)}")


def read_run(attempt: Attempt, run_dir: Path) -> None:
    """Add what the run directory says to `attempt`: accuracy, the ledger's audit, proofs, the steps."""
    if (run_dir / "config.toml").is_file():
        attempt.precision = tomllib.loads((run_dir / "config.toml").read_text())["ds"]["param_dtype"]
    if (run_dir / "ledger.jsonl").is_file():
        audited = audit(run_dir / "ledger.jsonl")
        attempt.open = len(audited.open)
        attempt.errors += map(str, audited.errors)
    columns = metrics.read(run_dir) if run_dir.is_dir() else {}
    refused = zip_longest(columns.get("canary_repeats", ()), columns.get("pushes_repeated", ()))
    attempt.false_alarms = sum(any(of_push) for of_push in refused) + int(
        metrics.total(columns, "failed/weights_unverified")
    )
    attempt.errors += [f"{name}: {metrics.total(columns, name):g}" for name in columns if _is_failure(name, columns)]
    unseen = TASKS[attempt.task].unseen
    before, after = evaluations(run_dir) if columns else (None, None)
    attempt.before = _figures(before, unseen)
    attempt.after = _figures(after, unseen)
    if (run_dir / UNTRAINED_FIGURES).is_file():
        attempt.untrained = _figures(evaluation_in(run_dir / UNTRAINED_FIGURES), unseen)
    names = ("step", "accuracy", "wall_s", "step_s", "push_s", "replay_wait_s", "code_ratio", "trained_tokens")
    rows = zip(*(columns.get(name, [None] * len(columns.get("step", ()))) for name in names), strict=True)
    attempt.steps = [dict(zip(names, row, strict=True)) for row in rows if row[names.index("wall_s")] is not None]


def write(attempt: Attempt, path: Path) -> None:
    """Keep the attempt. One that failed is kept as well; the next call runs it again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(asdict(attempt), indent=1) + "\n")


def cpu_name() -> str:
    """Return the processor's name and number of cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown'}, {os.cpu_count()} cores"


def _commit() -> str:
    described = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(described, cwd=REPO, capture_output=True, text=True).stdout.strip()


def _figures(evaluation: Evaluation | None, unseen: Collection[str]) -> dict[str, Any]:
    if evaluation is None:
        return {}
    return {
        figure: {
            "trained_kinds": evaluation.mean(figure, unseen=False, unseen_kinds=unseen),
            "unseen_kinds": evaluation.mean(figure, unseen=True, unseen_kinds=unseen),
            "by_kind": getattr(evaluation, figure),
        }
        for figure in FIGURES
    }


def _is_failure(name: str, columns: dict[str, list]) -> bool:
    return name.startswith("failed/") and metrics.total(columns, name) > 0


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
