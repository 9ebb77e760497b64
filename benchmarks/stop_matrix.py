"""Stop matrix: a training run is asked to stop (SIGTERM) at random moments. Is it gone within the grace, with a
checkpoint, and is its resume exact?

    undisturbed     the toy job once: Ray, learner on two ZeRO-3 ranks, rollout actor, sandbox server, S = 0, the
                    deterministic engine, and held-out evaluations before, in the middle of and after training
    run             the same job; SIGTERM reaches it at a random moment, it is started again with --resume, and so on:
                    five moments a run, one while it loads (imports, Ray, engines, learner), three in training (steps,
                    pushes, evaluations, checkpoints), one at its end (evaluation, export, report). Then it is resumed
                    to its end.

A moment passes if the run is gone, with exit code 5 (`exit_codes.STOPPED`), train.stop_grace_s and the 10 s that
closing takes after the signal, and none of its processes is left. Before there is a run to stop (the first seconds of
imports) the code is the signal's own, 143. A run passes if its final weights are those of the undisturbed one, bit for
bit, every prompt has exactly one end in the ledger (`audit`), and every step one row of metrics; then all its moments
count as resumed exactly.

    python -m benchmarks.stop_matrix --moments 20 --seed 0      a start: half a minute or more on two cores
    python -m benchmarks.stop_matrix --quick                    5 moments
    python -m benchmarks.stop_matrix --to group                 the signal goes to the whole process group, as Slurm,
                                                                systemd and Ctrl-C send it; `timeout`: as that does

The last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.command import command_parser, end_as_at_ctrl_c
from miniatures.toy.model import save_model
from miniatures.toy.task import write_data

from .crash_trial import Job, clean, command, end, kill_runs_at_an_error, last_step, outcome, start
from .stop_trial import Stopped, stop, wait_until

CLOSING_S = 10.0
"""What closing the session may take after the grace: with the default 20 s, the 30 s of Slurm and Kubernetes."""
HELD_OUT = 8
PHASES = ("loading", "training", "training", "training", "ending")
"""The phases in which the moments of one run lie. The loading one may come before, between or after the others."""


@dataclass(frozen=True)
class Timing:
    """Durations of an undisturbed run, in seconds: start to first step, a step, last step to end."""

    loading: float
    step: float
    ending: float


@dataclass(frozen=True)
class Moment:
    phase: str
    at: float
    """Loading and ending: a share of their time. Training: steps done; the fraction is waited for by the clock."""


def planned(n: int, steps: int, rng: random.Random) -> list[list[Moment]]:
    """The moments of each run, in the order in which they are due."""
    runs = []
    while n > 0:
        training = [
            Moment("training", round(due, 2))
            for due in sorted(rng.uniform(0, steps) for phase in PHASES if phase == "training")
        ]
        moments = [*training, Moment("ending", round(rng.random(), 2))]
        moments.insert(rng.randrange(len(training) + 1), Moment("loading", round(rng.random(), 2)))
        runs.append(moments[:n])
        n -= len(moments)
    return runs


class Run:
    """The job in one directory, started as often as it is stopped."""

    def __init__(self, run_dir: Path, job: Job, grace_s: float, to: str = "driver") -> None:
        self.run_dir, self.job, self.to = run_dir, job, to
        more = {
            "eval.dataset": job.data / "test.jsonl",
            "eval.steps": 3,
            "train.stop_grace_s": grace_s,
            "train.resume": "true",
            "train.resume_or_start": "true",
        }
        self.args = [
            *command(run_dir, job, deadlines={}),
            *(str(x) for name, value in more.items() for x in (f"--{name}", value)),
        ]
        run_dir.mkdir()

    def start(self) -> subprocess.Popen:
        self._ledger = self._ledger_bytes()
        return start([*(["timeout", "86400"] if self.to == "timeout" else []), *self.args], self.run_dir / "log")

    def _ledger_bytes(self) -> int:
        path = self.run_dir / "ledger.jsonl"
        return path.stat().st_size if path.exists() else 0

    def in_training(self, step: int = 0) -> bool:
        """Since the last start, with at least so many steps done. A resume begins with a line in the ledger."""
        return self._ledger_bytes() != self._ledger and last_step(self.run_dir) >= step

    @property
    def phase(self) -> str:
        if not self.in_training():
            return "loading"
        return "ending" if self.in_training(self.job.steps) else "training"

    def timed(self) -> tuple[str, Timing]:
        """The undisturbed run: digest of its weights. Raises SystemExit when it does not end as it should."""
        process, marks = self.start(), [time.monotonic()]
        for step in (0, 1, self.job.steps):
            if not wait_until(process, self.run_dir, lambda: self.in_training(step)):  # noqa: B023  called within the turn
                raise SystemExit("The undisturbed run ended without training.")
            marks.append(time.monotonic())
        code = end(process)
        if code != 0 or not clean(self.run_dir, self.job.steps):
            raise SystemExit(f"The undisturbed run ended with {code}:\n{(self.run_dir / 'log').read_text()[-3000:]}")
        begun, trains, first, last = marks
        timing = Timing(trains - begun, (last - first) / (self.job.steps - 1), time.monotonic() - last)
        return outcome(self.run_dir)[0], timing

    def stopped_at(self, moment: Moment, timing: Timing) -> tuple[str, Stopped] | None:
        """Start it, and stop it at the moment; the phase that it was in. None: it has ended before."""
        process = self.start()
        if moment.phase == "loading":
            reached, pause = True, moment.at * timing.loading
        else:
            step = int(moment.at) if moment.phase == "training" else self.job.steps
            reached = wait_until(process, self.run_dir, lambda: self.in_training(step))
            pause = moment.at % 1 * (timing.step if moment.phase == "training" else timing.ending)
        with suppress(subprocess.TimeoutExpired):
            process.wait(pause)
        if not reached or process.returncode == 0:
            return None
        phase = self.phase
        send = {
            "driver": None,
            "group": partial(os.killpg, process.pid, signal.SIGTERM),
            # `timeout` is the leader here: what it is sent it passes on to its child, and then to its process group.
            "timeout": process.terminate,
        }[self.to]
        return phase, stop(process, self.run_dir, send)

    def finished(self, digest: str) -> bool:
        """Resumed to its end; whether that is the end of the undisturbed run."""
        code = end(self.start())
        return code == 0 and clean(self.run_dir, self.job.steps) and outcome(self.run_dir)[0] == digest


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="5 moments")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--to", choices=["driver", "group", "timeout"], default="driver", help="who gets the signal")
    parser.add_argument("--grace", type=float, default=20.0, help="train.stop_grace_s")
    parser.add_argument(
        "--keep",
        type=Path,
        help="an empty directory for the runs; default: a temporary one, removed unless something failed",
    )
    args = parser.parse_args()
    work = args.keep or Path(tempfile.mkdtemp(prefix="stop_matrix_"))
    work.mkdir(parents=True, exist_ok=True)
    save_model(work / "init", seed=0)
    write_data(work, seed=0, n_train=200, n_test=HELD_OUT)
    job = Job(work, None, "torch", "sync", args.steps)

    end_as_at_ctrl_c()
    stops: list[Stopped] = []
    phases: Counter[str] = Counter()
    exact = 0
    with kill_runs_at_an_error(work):
        digest, timing = Run(work / "undisturbed", job, args.grace).timed()
        print(
            f"undisturbed: {timing.loading:.0f} s of loading, {timing.step:.1f} s a step,"
            f" {timing.ending:.0f} s from the last step to the end",
            flush=True,
        )
        for i, moments in enumerate(planned(5 if args.quick else args.moments, args.steps, random.Random(args.seed))):
            run, before = Run(work / f"run_{i:02d}", job, args.grace, args.to), len(stops)
            for moment in moments:
                found = run.stopped_at(moment, timing)
                outcome = {"hit": found[0], **asdict(found[1])} if found else {"missed": True}
                print(f"{i:3d} {json.dumps({**asdict(moment), **outcome})}", flush=True)
                if found:
                    phases[found[0]] += 1
                    stops.append(found[1])
            same = run.finished(digest)
            exact += same * (len(stops) - before)
            verdict = "the same weights, audit clean" if same else "NOT the end of the undisturbed run"
            print(f"{i:3d} resumed to its end: {verdict}", flush=True)

    in_grace = sum(s.in_order and s.seconds <= args.grace + CLOSING_S for s in stops)
    passed = 0 < in_grace == exact == len(stops) and not any(s.left for s in stops)
    if passed and not args.keep:
        shutil.rmtree(work)
    else:
        print(f"runs: {work}")
    seconds = [s.seconds for s in stops]
    p50, p90 = (round(float(p), 1) for p in np.percentile(seconds, [50, 90])) if seconds else (None, None)
    summary = {
        "moments": len(stops),
        "phases": dict(sorted(phases.items())),
        "exit_codes": dict(sorted(Counter(str(s.code) for s in stops).items())),
        "stopped_in_grace": in_grace,
        "left_processes": sum(len(s.left) for s in stops),
        "resumed_exact": exact,
        "seconds_to_stop_p50": p50,
        "seconds_to_stop_p90": p90,
        "to": args.to,
        "grace_s": args.grace,
        "steps": args.steps,
        "seed": args.seed,
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
