"""Soak: train for hours while processes are killed, frozen, stopped and resumed; memory and descriptors stay flat.

    python -m benchmarks.soak --minutes 10                                    the toy model
    python -m benchmarks.soak --minutes 120 -- --recipe smollm2_cpu ...       any run: flags of `openrlhf-tir train`

Every `--every` seconds on average one process of the run is killed or frozen, or the run is stopped by a signal to its
driver or its group, and resumed. Every `--sample` seconds the memory and descriptors of its processes are
noted, with what the run holds in shared memory and on disk.

Growth is measured within the life of a process, from the middle third of its samples to the last: what it takes at its
start is no leak. The last line is JSON; the exit code is 0 if `passed`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.crash_trial import MARK, TARGETS, Job, command, controller_of, find, last_line, last_step, start
from openrlhf_tir.commands.exit_codes import STOPPED
from openrlhf_tir.replay.audit import audit
from openrlhf_tir.toy.model import save_model
from openrlhf_tir.toy.task import write_data

FOR_EVER = 10**9
"""Updates that no soak comes to."""
DISTURBANCES = ("kill", "kill", "freeze", "stop", "stop_group", "interrupt_group")
FREEZE_S = 5.0
END_S = 600.0
"""Longest wait for a run to end after a signal, or to come up."""
MIN_SAMPLES = 9
"""Shorter lives say nothing of growth."""
MOST_FAILURES = 3
SHARED_MEMORY = Path("/dev/shm")
MIB = 2**20


@dataclass
class Life:
    """What one process was seen to hold, from its first sample to its last."""

    role: str
    pss: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    @staticmethod
    def growth(samples: list[float] | list[int]) -> float:
        """Return the median of the last third less that of the middle third."""
        third = len(samples) // 3
        return statistics.median(samples[-third:]) - statistics.median(samples[third : 2 * third])


@dataclass
class Watch:
    """Samples of everything that a run holds."""

    run_dir: Path
    lives: dict[tuple[int, float], Life] = field(default_factory=dict)
    shared_memory: list[int] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)

    def sample(self) -> None:
        """Note what every process of the run holds now, and its files."""
        for process in of_run(self.run_dir):
            with suppress(psutil.Error):  # it ends as it is looked at
                life = self.lives.setdefault((process.pid, process.create_time()), Life(role_of(process)))
                life.pss.append(process.memory_full_info().pss / MIB)
                life.descriptors.append(process.num_fds())
        self.shared_memory.append(sum(bytes_below(path) for path in pushes_of(self.run_dir)))
        self.checkpoints.append(bytes_below(self.run_dir / "ckpt"))

    def growth(self) -> dict[str, dict[str, float]]:
        """Return the most that a process of each role grew, in MiB and descriptors, over lives that tell."""
        by_role: dict[str, list[Life]] = defaultdict(list)
        for life in self.lives.values():
            if len(life.pss) >= MIN_SAMPLES:
                by_role[life.role].append(life)
        return {
            role: {
                "lives": len(lives),
                "pss_mib": round(max(life.growth(life.pss) for life in lives), 1),
                "peak_mib": round(max(max(life.pss) for life in lives), 1),
                "descriptors": max(life.growth(life.descriptors) for life in lives),
            }
            for role, lives in sorted(by_role.items())
        }


def of_run(run_dir: Path) -> list[psutil.Process]:
    """Return the living processes that carry the run's mark in their environment."""
    mark = f"{MARK}={run_dir / 'log'}".encode()
    found = []
    for pid in psutil.pids():
        with suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(psutil.Process(pid))
    return [process for process in found if lives(process)]


def lives(process: psutil.Process) -> bool:
    """Return False for a process that is gone, and for one that only its parent has yet to notice."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def role_of(process: psutil.Process) -> str:
    """Return what a process is in the run: a Ray actor's class, a daemon's name, a module of ours."""
    words = process.cmdline()
    if words and words[0].startswith("ray::"):
        return words[0].partition(".")[0]
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    return Path(words[0]).name if words else process.name()


def pushes_of(run_dir: Path) -> list[Path]:
    return [*SHARED_MEMORY.glob(f"tir_weights_{run_dir.name}_*")]


def bytes_below(path: Path) -> int:
    """Return the size of a file, or of all files of a directory; what is removed meanwhile counts nothing."""
    total = 0
    for file in [path, *path.rglob("*")]:
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


@dataclass
class Soak:
    """One run, begun and resumed until the time is over."""

    words: list[str]
    run_dir: Path
    rng: random.Random
    watch: Watch
    sample_s: float
    done: Counter[str] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    left_s: float = 20.0
    """How long after a run's end its processes may take to be gone."""

    def run(self, seconds: float, every_s: float) -> None:
        """Disturb the run for so long, then stop it."""
        give_up = time.monotonic() + seconds
        process = start(self.words, self.run_dir / "log")
        while time.monotonic() < give_up and len(self.failures) < MOST_FAILURES:
            pause = min(self.rng.expovariate(1 / every_s), give_up - time.monotonic())
            self.wait(process, pause)
            if process.poll() is None and time.monotonic() < give_up:
                self.disturb(process, self.rng.choice(DISTURBANCES))
            if process.poll() is not None:
                process = self.resumed(process)
        self.signal(process, signal.SIGTERM, group=False)

    def wait(self, process: subprocess.Popen, seconds: float) -> None:
        """Let the run be for so long, or until it ends."""
        until = time.monotonic() + seconds
        while process.poll() is None and (left := until - time.monotonic()) > 0:
            self.watch.sample()
            with suppress(subprocess.TimeoutExpired):
                process.wait(min(left, self.sample_s))

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
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        left = self.left_over()
        if process.poll() is None or left:
            self.failures.append(f"{signal.Signals(number).name}{' to the group' * group}: left after the end: {left}")
            for one in of_run(self.run_dir):
                with suppress(psutil.Error):
                    one.kill()
            process.kill()
        self.codes[process.wait()] += 1

    def left_over(self) -> list[str]:
        """Return the processes that are still there a little after the run has ended."""
        _, alive = psutil.wait_procs(of_run(self.run_dir), timeout=self.left_s)
        return [f"{one.pid} {role_of(one)}" for one in alive if lives(one)]

    def resumed(self, process: subprocess.Popen) -> subprocess.Popen:
        """Start the run again, whatever ended it; an end that nobody asked for is noted."""
        if process.returncode not in (0, STOPPED) and not self.codes[process.returncode]:
            self.codes[process.returncode] += 1
            self.done["resumed by hand"] += 1
        return start([*self.words, "--train.resume_or_start"], self.run_dir / "log")


def toy(directory: Path) -> list[str]:
    """Return the command line of a run that trains random weights on parity, for ever."""
    save_model(directory / "init", seed=0)
    write_data(directory / "data", seed=0, n_train=2000)
    data = directory / "job"
    data.mkdir()
    (data / "init").symlink_to(directory / "init")
    (data / "train.jsonl").symlink_to(directory / "data/train.jsonl")
    words = command(directory / "run", Job(data, None, "vllm", "pipeline", FOR_EVER), {})
    return [*words, "--train.num_episodes", str(FOR_EVER)]


def problems(soak: Soak, most_growth_mib: float, most_descriptors: float) -> Iterator[str]:
    """Yield a sentence for each thing that did not hold."""
    yield from soak.failures
    report = audit(soak.run_dir / "ledger.jsonl")
    yield from map(str, report.errors)
    for role, grew in soak.watch.growth().items():
        if grew["pss_mib"] > most_growth_mib:
            yield f"{role} grew by {grew['pss_mib']} MiB"
        if grew["descriptors"] > most_descriptors:
            yield f"{role} grew by {grew['descriptors']} descriptors"
    if left := pushes_of(soak.run_dir):
        yield f"left in /dev/shm: {', '.join(map(str, left))}"
    for name in ("shared_memory", "checkpoints"):
        sizes = getattr(soak.watch, name)
        third = len(sizes) // 3
        if third and max(sizes[-third:]) > 1.5 * max(sizes[third : 2 * third]):
            yield f"{name} grew from {max(sizes[third : 2 * third])} to {max(sizes[-third:])} bytes"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=360.0)
    parser.add_argument("--every", type=float, default=120.0, metavar="S", help="mean time between two disturbances")
    parser.add_argument("--sample", type=float, default=5.0, metavar="S", help="time between two samples")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--growth-mib", type=float, default=48.0, help="the most that a process may grow")
    parser.add_argument("--growth-descriptors", type=float, default=8)
    parser.add_argument("--directory", type=Path, help="where the run goes (default: a temporary directory)")
    parser.add_argument("flags", nargs="*", help="after --: flags of `openrlhf-tir train`, without --run-dir")
    args = parser.parse_args()
    directory = args.directory or Path(tempfile.mkdtemp(prefix="tir_soak_"))
    run_dir = directory / "run"
    run_dir.mkdir(parents=True)
    train = [sys.executable, "-m", "openrlhf_tir.cli", "train", "--run-dir", str(run_dir), "--train.max_restarts", "3"]
    words = [*train, *args.flags] if args.flags else toy(directory)
    soak = Soak(words, run_dir, random.Random(args.seed), Watch(run_dir), args.sample)
    began = time.monotonic()
    soak.run(60 * args.minutes, args.every)
    found = [*problems(soak, args.growth_mib, args.growth_descriptors)]
    result = {
        "minutes": round((time.monotonic() - began) / 60, 1),
        "updates": int(last_step(run_dir)),
        "disturbances": dict(soak.done),
        "exit_codes": {str(code): n for code, n in soak.codes.items()},
        "growth": soak.watch.growth(),
        "shared_memory_bytes_max": max(soak.watch.shared_memory, default=0),
        "checkpoint_bytes_max": max(soak.watch.checkpoints, default=0),
        "problems": found,
        "passed": not found,
    }
    if found:
        print(f"the run's last words: {last_line(run_dir / 'log')}", file=sys.stderr)
    print(json.dumps(result))
    return 0 if not found else 1


if __name__ == "__main__":
    sys.exit(main())
