"""Soak: train for hours while processes are killed, frozen, stopped and resumed; memory and descriptors stay flat.

    python -m benchmarks.soak --minutes 20 --every 240                        the toy model
    python -m benchmarks.soak --model smollm2 --minutes 120 --every 900       SmolLM2, on its numbers task
    python -m benchmarks.soak --minutes 120 -- --recipe ...                   any run: flags of `openrlhf-tir train`

    make the model and its problems (unless flags name another run)
    until the time is over:
        train; every `--every` seconds on average
            kill or freeze one process (driver, engine, learner rank, environment server), or
            stop the run by a signal to its driver or to its process group, and resume it
    stop it, resume it for FINISH_UPDATES more updates to its end, and audit it: every prompt has exactly one end

Every `--sample` seconds the memory and the descriptors of the run's processes are noted, with what the run holds in
shared memory and on disk (soak_watch.py). DIRECTORY/samples.json keeps them: for each kind of process and each of its
lives [update, MiB, descriptors].

The toy model uses its tool. The learning rate is so small that a model stays about as good as it is: a solved task
would have no group with variance left, and nothing to train on. Three of four groups of SmolLM2 have no variance; they
are trained as well.

An end that no resume can mend (exit codes MISTAKE and HOPELESS) and a run that does not get on fail the soak at once.
The last line is JSON; the exit code is 0 if `passed`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.command import command_parser, end_as_at_ctrl_c
from benchmarks.crash_trial import (
    BATCH,
    RESTARTS,
    TARGETS,
    Job,
    command,
    controller_of,
    find,
    kill_runs_at_an_error,
    last_line,
    lives,
    start,
)
from benchmarks.soak_watch import Watch, latest_step, pushes_of, role_of
from miniatures import numbers
from openrlhf_tir.cli.checks.host import Machine
from openrlhf_tir.cli.exit_codes import DONE, HOPELESS, INTERRUPTED, MISTAKE, STOPPED, TERMINATED
from openrlhf_tir.pipeline.ledger.audit import Audit, AuditCode, audit
from openrlhf_tir.pipeline.watchdog import DUMP

SAMPLES = "samples.json"
FOR_EVER = 10**9
"""Updates that no soak comes to."""
FINISH_UPDATES = 2
"""Updates of the last resume, which lets the run end by itself."""
DISTURBANCES = ("kill", "kill", "freeze", "stop", "stop_group", "interrupt_group")
HELD_OUT = 8
"""Problems of the evaluations before and after training: more would be most of a short life."""
FREEZE_S = 5.0
END_S = 600.0
"""Longest wait for a run to end after a signal."""
FINISH_S = 1800.0
"""Longest wait for the last resume, which evaluates and exports too."""
MOST_FAILURES = 3
MOST_IDLE_STARTS = 3
"""Starts in a row that nobody disturbs and that end without an update."""
ANSWERS = frozenset({DONE, STOPPED, INTERRUPTED, TERMINATED, -signal.SIGINT, -signal.SIGTERM})
"""Exit codes of a run that was told to stop. Before there is a run to stop, the code is the signal's own."""
GROWTH_MIB = 48.0
GROWTH_DESCRIPTORS = 8
"""The most that one process may grow, unless the command says otherwise."""
DUPLICATES = (AuditCode.TRAINED_AGAIN, AuditCode.ISSUED_AGAIN)
ROLES = ("ray::LearnerRank", "ray::RolloutActor", "openrlhf_tir.cli", "env_servers.python_tir")
"""Kinds of process that a soak must have judged, unless its flags name another run."""


class Bars(NamedTuple):
    """What a soak allows unless its command says otherwise.

    Attributes:
        growth_mib_per_update: The most that the processes of a kind may grow on average.
        settle: Updates of a process that do not count.
        roles: Kinds of process that must have been judged.
    """

    growth_mib_per_update: float
    settle: int
    roles: tuple[str, ...]


TOY_BARS = Bars(0.1, 60, ROLES)
"""An engine takes 280 MiB in its first 80 updates, most of it in the first 50, and little from then on."""
REAL_MODEL_BARS = Bars(5.0, 6, ROLES)
"""Its updates take half a minute or more: give a long time between two disturbances."""
OTHER_BARS = Bars(5.0, 10, ())


@dataclass
class Soak:
    """One run, begun and resumed until the time is over.

    Attributes:
        words: The command line that starts it.
        run_dir: Its directory.
        rng: Draws disturbances and their moments.
        watch: Takes the samples.
        sample_s: Seconds between two samples.
        left_s: Seconds that the processes of a run may take to be gone after its end.
        done: Disturbances by kind.
        codes: Exit codes.
        failures: Sentences about what did not hold.
        over: True if going on cannot help.
    """

    words: list[str]
    run_dir: Path
    rng: random.Random
    watch: Watch
    sample_s: float
    left_s: float = 20.0
    done: Counter[str] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    over: bool = False
    _idle_starts: int = 0
    _updates_at_start: int = 0

    def run(self, seconds: float, every_s: float) -> None:
        """Disturb the run for so many seconds, and stop it.

        Args:
            seconds: Duration.
            every_s: Mean time between two disturbances.
        """
        give_up = time.monotonic() + seconds
        process = self._started([])
        while time.monotonic() < give_up and not self.over:
            self.wait(process, min(self.rng.expovariate(1 / every_s), give_up - time.monotonic()))
            if process.poll() is not None:
                self.ended_alone(process)
            elif time.monotonic() < give_up:
                self.disturb(process, self.rng.choice(DISTURBANCES))
            if process.poll() is not None and not self.over:
                process = self._started(["--train.resume_or_start"])
        if process.poll() is None:
            self.signal(process, signal.SIGTERM, group=False)

    def finish(self) -> None:
        """Resume the run for FINISH_UPDATES more updates, after which it ends by itself: what is open then is lost."""
        steps = latest_step(self.run_dir) + FINISH_UPDATES
        process = self._started(["--train.resume_or_start", "--train.max_steps", str(steps)])
        try:
            code = process.wait(FINISH_S)
        except subprocess.TimeoutExpired:
            self.fail(f"The last resume did not end within {FINISH_S:.0f} s")
            self._kill_all(process)
            return
        self.codes[code] += 1
        self.watch.count_alarms()
        if left := self.left_over():
            self.fail(f"Left after the last resume: {left}")
        if code != DONE:
            self.fail(f"The last resume ended with exit code {code}: {last_line(self.run_dir / 'log')}")

    def fail(self, sentence: str, *, hopeless: bool = False) -> None:
        """Note what did not hold; end the soak if it is hopeless, or if it happened too often."""
        self.failures.append(sentence)
        self.over |= hopeless or len(self.failures) >= MOST_FAILURES

    def wait(self, process: subprocess.Popen, seconds: float) -> None:
        """Let the run be for so many seconds, or until it ends."""
        until = time.monotonic() + seconds
        while process.poll() is None and (left := until - time.monotonic()) > 0:
            self.watch.sample()
            with suppress(subprocess.TimeoutExpired):
                process.wait(min(left, self.sample_s))

    def ended_alone(self, process: subprocess.Popen) -> None:
        """Judge an end that no signal asked for: what a resume cannot mend ends the soak."""
        code = process.returncode
        self.codes[code] += 1
        self.done["resumed by hand"] += 1
        self.watch.count_alarms()
        self._idle_starts = self._idle_starts + 1 if self.watch.updates == self._updates_at_start else 0
        reason = f"The run ended with exit code {code} by itself: {last_line(self.run_dir / 'log')}"
        if code in (DONE, MISTAKE, HOPELESS):
            self.fail(reason, hopeless=True)
        elif self._idle_starts >= MOST_IDLE_STARTS:
            self.fail(f"No update in {self._idle_starts} starts. {reason}", hopeless=True)

    def disturb(self, process: subprocess.Popen, what: str) -> None:
        """Do one thing to the run. A signal that stops it is followed to its end."""
        if what == "stop":
            self.signal(process, signal.SIGTERM, group=False)
        elif what == "stop_group":
            self.signal(process, signal.SIGTERM, group=True)
        elif what == "interrupt_group":
            self.signal(process, signal.SIGINT, group=True)
        else:
            target = self.rng.choice(TARGETS)
            with suppress(psutil.NoSuchProcess):
                victim = find(controller_of(psutil.Process(process.pid)), target)
                if victim is None:
                    return
                what = f"{what} {target}"
                if what.startswith("kill"):
                    victim.kill()
                else:
                    victim.suspend()
                    time.sleep(FREEZE_S)
                    victim.resume()
        self.done[what] += 1

    def signal(self, process: subprocess.Popen, number: int, *, group: bool) -> None:
        """Send a signal to the driver or to its whole process group, and wait for the end of the run."""
        name = f"{signal.Signals(number).name}{' to the group' * group}"
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        left = self.left_over()
        if process.poll() is None or left:
            self.fail(f"{name}: left after the end: {left}")
            self._kill_all(process)
        code = process.wait()
        self.codes[code] += 1
        self.watch.count_alarms()
        if code not in ANSWERS and not left:
            reason = f"{name}: ended with exit code {code}: {last_line(self.run_dir / 'log')}"
            self.fail(reason, hopeless=code in (MISTAKE, HOPELESS))

    def left_over(self) -> list[str]:
        """Return the processes that are still there a little after the run has ended."""
        _, alive = psutil.wait_procs(self.watch.living(), timeout=self.left_s)
        left = []
        for process in filter(lives, alive):
            with suppress(psutil.Error):  # It may end while it is looked at.
                left.append(f"{process.pid} {role_of(process)}")
        return left

    def _kill_all(self, process: subprocess.Popen) -> None:
        for living in self.watch.living():
            with suppress(psutil.Error):
                living.kill()
        process.kill()
        process.wait()

    def _started(self, more: list[str]) -> subprocess.Popen:
        self._updates_at_start = self.watch.updates
        return start([*self.words, *more], self.run_dir / "log")


def toy(directory: Path, base: Path | None) -> list[str]:
    """Return the command line of a run of the toy model that goes on for ever and stays as good as it is.

    Args:
        directory: The run goes below it.
        base: Directory of an earlier quickstart or `toy-model`, with `base` and `data`; None: make one.
    """
    if base is None:
        base = directory / "toy"
        make = [sys.executable, "-m", "openrlhf_tir.cli", "toy-model", "--run-dir", str(base)]
        subprocess.run(make, check=True, stdout=sys.stderr)
    data = directory / "data"
    data.mkdir()
    (data / "train.jsonl").write_text((base / "data/train.jsonl").read_text())
    (data / "test.jsonl").write_text((base / "data/test.jsonl").read_text())
    _shorten(data / "test.jsonl")
    words = command(directory / "run", Job(data, base / "base", "vllm", "pipeline", FOR_EVER), {})
    return [*words, "--train.num_episodes", str(FOR_EVER), "--actor.learning_rate", "1e-7"]


def real_model(directory: Path, name: str) -> list[str]:
    """Make a packaged model and its problems, and return the flags of a run on them that goes on for ever.

    Args:
        directory: Model and problems go below it.
        name: The packaged model.
    """
    make = [sys.executable, "-m", "openrlhf_tir.cli", "model", name, "--out", str(directory / "model")]
    subprocess.run(make, check=True, stdout=sys.stderr)
    train, test = numbers.write_rows(directory / "data", seed=0)
    _shorten(test)
    flags = {
        "recipe": "smollm2_cpu",
        "actor.model_name_or_path": directory / "model",
        "data.prompt_dataset": train,
        "eval.dataset": test,
        "ds.param_dtype": "bf16" if Machine().bf16 else "fp32",
        "actor.learning_rate": 1e-6,
        "rollout.batch_size": BATCH,
        "filter.names": "[]",
        "train.max_steps": FOR_EVER,
        "train.num_episodes": FOR_EVER,
        "ckpt.save_steps": 2,
    }
    return [str(word) for flag, value in flags.items() for word in (f"--{flag}", value)]


def _shorten(test: Path) -> None:
    """Leave the first HELD_OUT rows of a file."""
    rows = test.read_text().splitlines(keepends=True)
    test.write_text("".join(rows[:HELD_OUT]))


def problems(
    soak: Soak, *, growth_mib: float, growth_mib_per_update: float, growth_descriptors: int, roles: tuple[str, ...]
) -> Iterator[str]:
    """Yield a sentence for each thing that did not hold.

    Args:
        soak: A soak that is over.
        growth_mib: The most that one process may grow.
        growth_mib_per_update: The most that the processes of a kind may grow on average.
        growth_descriptors: The most descriptors that one process may add.
        roles: Kinds of process of which at least one must have lived long enough to be judged.
    """
    yield from soak.failures
    yield from map(str, _audited(soak.run_dir).errors)
    grown = soak.watch.growth()
    for role, grew in grown.items():
        if grew["memory_mib_max"] > growth_mib:
            yield f"{role} grew by {grew['memory_mib_max']} MiB"
        if (grew["memory_mib_per_update"] or 0) > growth_mib_per_update:
            yield f"{role} grew by {grew['memory_mib_per_update']} MiB an update, over {grew['updates']} updates"
        if grew["descriptors_max"] > growth_descriptors:
            yield f"{role} grew by {grew['descriptors_max']} descriptors"
    for role in roles:
        if role not in grown:
            yield f"No process {role} lived long enough to be judged: more --minutes, or a larger --every"
    if left := pushes_of(soak.run_dir):
        yield f"left in /dev/shm: {', '.join(map(str, left))}"
    for name in ("shared_memory", "checkpoints"):
        sizes = getattr(soak.watch, name)
        third = len(sizes) // 3
        if third and max(sizes[-third:]) > 1.5 * max(sizes[third : 2 * third]):
            yield f"{name} grew from {max(sizes[third : 2 * third])} to {max(sizes[-third:])} bytes"
    for name, count in false_alarms(soak).items():
        if count:
            yield f"false alarms: {name} {count}"


def _audited(run_dir: Path) -> Audit:
    """Replay the run's ledger; a run that ended before it had one has trained nothing and lost nothing."""
    ledger = run_dir / "ledger.jsonl"
    return audit(ledger) if ledger.exists() else Audit()


def false_alarms(soak: Soak) -> dict[str, int]:
    """Return how often the run took something for wrong that was right: proofs of pushes, and stalls."""
    alarms = {name: int(count) for name, count in soak.watch.alarms.items()}
    return alarms | {"stalls": int((soak.run_dir / DUMP).exists())}


def summary(soak: Soak, minutes: float, found: list[str]) -> dict:
    """Return the figures of a soak that is over.

    Args:
        soak: The soak.
        minutes: How long it took.
        found: What did not hold.
    """
    report = _audited(soak.run_dir)
    codes = Counter(error.code for error in report.errors)
    return {
        "minutes": round(minutes, 1),
        "updates": soak.watch.updates,
        "disturbances": dict(sorted(soak.done.items())),
        "exit_codes": {str(code): n for code, n in sorted(soak.codes.items())},
        "growth": soak.watch.growth(),
        "prompts_trained": len(report.trained),
        "lost_prompts": len(report.open) if report.finished else None,
        "duplicate_prompts": sum(codes[code] for code in DUPLICATES),
        "open_groups": len(report.open),
        "finished": report.finished,
        "false_alarms": false_alarms(soak),
        "shared_memory_bytes_max": max(soak.watch.shared_memory, default=0),
        "checkpoint_bytes_max": max(soak.watch.checkpoints, default=0),
        "problems": found,
        "passed": not found,
    }


def main() -> int:
    parser = command_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=360.0, help="how long disturbances go on [%(default)g]")
    parser.add_argument("--every", type=float, default=120.0, metavar="S", help="mean time between two disturbances")
    parser.add_argument("--sample", type=float, default=5.0, metavar="S", help="time between two samples")
    parser.add_argument(
        "--settle",
        type=int,
        metavar="N",
        help="first updates of a process that are left out [10; toy 60; smollm2 6]",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--growth-mib", type=float, default=GROWTH_MIB, help="the most that one process may grow [%(default)g]"
    )
    parser.add_argument(
        "--growth-mib-per-update",
        type=float,
        help="the most that the processes of a kind may grow on average [5; the toy model 0.1]",
    )
    parser.add_argument(
        "--growth-descriptors", type=int, default=GROWTH_DESCRIPTORS, help="the same, in descriptors [%(default)s]"
    )
    parser.add_argument("--directory", type=Path, help="where the run goes (default: a temporary directory)")
    parser.add_argument("--toy", type=Path, metavar="DIR", help="run directory of an earlier quickstart or toy-model")
    parser.add_argument("--model", choices=["smollm2"], help="train this model (default: the toy model)")
    parser.add_argument("flags", nargs="*", help="after --: flags of `openrlhf-tir train`, without --run-dir")
    args = parser.parse_args()
    if args.model and args.flags:
        parser.error(f"--model {args.model} and flags of `train` name two runs. Leave one of them out.")
    directory = args.directory or Path(tempfile.mkdtemp(prefix="tir_soak_"))
    run_dir = directory / "run"
    run_dir.mkdir(parents=True)
    train = [sys.executable, "-m", "openrlhf_tir.cli", "train", "--run-dir", str(run_dir)]
    train += ["--train.max_restarts", str(RESTARTS)]
    if args.flags:
        words, bars = [*train, *args.flags], OTHER_BARS
    elif args.model:
        words, bars = [*train, *real_model(directory, args.model)], REAL_MODEL_BARS
    else:
        words, bars = toy(directory, args.toy), TOY_BARS
    settle = bars.settle if args.settle is None else args.settle
    soak = Soak(words, run_dir, random.Random(args.seed), Watch(run_dir, settle), args.sample)
    end_as_at_ctrl_c()
    began = time.monotonic()
    try:
        with kill_runs_at_an_error(run_dir):
            soak.run(60 * args.minutes, args.every)
            if not soak.over:
                soak.finish()
    finally:
        (directory / SAMPLES).write_text(json.dumps(soak.watch.table()))
    per_update = args.growth_mib_per_update
    found = [
        *problems(
            soak,
            growth_mib=args.growth_mib,
            growth_mib_per_update=bars.growth_mib_per_update if per_update is None else per_update,
            growth_descriptors=args.growth_descriptors,
            roles=bars.roles,
        )
    ]
    if found:
        print(f"The run is in {directory}. Its last words: {last_line(run_dir / 'log')}", file=sys.stderr)
    print(json.dumps(summary(soak, (time.monotonic() - began) / 60, found)))
    return 0 if not found else 1


if __name__ == "__main__":
    sys.exit(main())
