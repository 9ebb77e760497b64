"""What a soaked run holds over time: memory and descriptors of every process, shared memory, checkpoints.

Growth is measured within the life of one process and only after its first updates, because what a process takes at its
start is no leak:

    samples of one process     first ... | `settle` updates | first third | middle third | last third
    growth of its memory                                                    median  -->    median
    growth per update          the same difference, summed over all processes of a kind, over the updates in between

One process says little about a leak of some kilobytes an update; all processes of a kind together do.

Descriptors are compared at their fewest in each of PARTS equal parts of the settled samples. Their growth is the
smallest rise from one part to the next, times the number of rises. What is never closed raises every part above the one
before. A pool of connections keeps as many as its largest burst needed for as long as each is used now and then: the
burst raises one part, and the next rise is zero until a still larger one comes.

    a leak     |  40 |  52 |  64 |  76 |  88 |    rises 12 12 12 12    growth 48
    a burst    |  40 |  40 |  60 |  60 |  60 |    rises  0 20  0  0    growth  0

Memory is what a process has of its own or shares in /dev/shm, without the files that it maps: its part of a library
becomes larger whenever another process that maps the same library ends, on the same machine or in another run.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.crash_trial import lives, of_run
from openrlhf_tir.telemetry import metrics
from openrlhf_tir.weights.push_files import push_directory

MIN_SAMPLES = 9
"""A process with fewer samples after its first updates says nothing about growth."""
PARTS = 5
"""Parts of a process's settled samples whose fewest descriptors are compared. Only four bursts, each in a part of its
own and larger than those before, look like a leak."""
TAIL_BYTES = 2**18
"""Bytes at the end of metrics.jsonl in which its last row is looked for."""
MIB = 2**20


class Sample(NamedTuple):
    """What one process holds at one moment.

    Attributes:
        updates: Updates of the whole soak so far; updates that a resume repeats count again.
        memory_mib: Anonymous memory and its part of shared memory.
        descriptors: Number of open file descriptors.
    """

    updates: int
    memory_mib: float
    descriptors: int


class Growth(NamedTuple):
    """What one process took on after its first updates; the head of this file shows the two rules.

    Attributes:
        updates: Updates from the middle third of its samples to the last third, by their medians.
        memory_mib: Difference of the medians of the memory of the two.
        descriptors: Descriptors that it added steadily.
    """

    updates: float
    memory_mib: float
    descriptors: int


@dataclass
class Life:
    """One process, from its first sample to its last.

    Attributes:
        role: What the process is in the run.
        samples: In order of time.
    """

    role: str
    samples: list[Sample] = field(default_factory=list)

    def growth(self, settle: int) -> Growth | None:
        """Return the growth after the first `settle` updates, or None if it did not live for as many more.

        Within an update memory and connections come and go.
        """
        first = self.samples[0].updates
        settled = [sample for sample in self.samples if sample.updates >= first + settle]
        if len(settled) < MIN_SAMPLES or settled[-1].updates - settled[0].updates < settle:
            return None
        third = len(settled) // 3
        middle = settled[third : 2 * third]
        last = settled[-third:]
        return Growth(
            updates=_median(last, "updates") - _median(middle, "updates"),
            memory_mib=_median(last, "memory_mib") - _median(middle, "memory_mib"),
            descriptors=_steady_rise([sample.descriptors for sample in settled]),
        )


def _steady_rise(numbers: Sequence[int]) -> int:
    """Return the smallest rise of the fewest from one part of the numbers to the next, times the number of rises."""
    bounds = [len(numbers) * part // PARTS for part in range(PARTS + 1)]
    fewest = [min(numbers[first:end]) for first, end in pairwise(bounds)]
    return max(0, min(after - before for before, after in pairwise(fewest))) * (PARTS - 1)


def _median(samples: Sequence[Sample], name: str) -> float:
    return statistics.median(getattr(sample, name) for sample in samples)


@dataclass
class Watch:
    """Samples of everything that a run holds.

    Attributes:
        run_dir: The run's directory.
        settle: Updates of a process's life that do not count for its growth.
        lives: What each process held. A psutil process is equal to itself only, however often its number is used again.
        shared_memory: Bytes in /dev/shm at every sample.
        checkpoints: Bytes of the checkpoints at every sample.
        updates: Updates seen so far; those that a resume repeats count again.
        alarms: Proofs of pushes that failed, by the metric that counts them. Every push of a soak is right.
    """

    run_dir: Path
    settle: int = 10
    lives: dict[psutil.Process, Life] = field(default_factory=dict)
    shared_memory: list[int] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)
    updates: int = 0
    alarms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("canary_repeats", "pushes_repeated"), 0.0))
    _step: int = 0
    _read_until: float = 0.0

    def sample(self) -> None:
        """Note what every process of the run holds now, and its files."""
        step = latest_step(self.run_dir)
        self.updates += max(0, step - self._step)
        self._step = step
        for process in self.living():
            with suppress(psutil.Error, OSError):  # It may end while it is looked at.
                sample = Sample(self.updates, own_memory(smaps(process.pid)) / MIB, process.num_fds())
                role = role_of(process)
                life = self.lives.setdefault(process, Life(role))
                life.role = role  # A worker of Ray is idle before it is an actor.
                life.samples.append(sample)
        self.shared_memory.append(sum(bytes_below(path) for path in pushes_of(self.run_dir)))
        self.checkpoints.append(bytes_below(self.run_dir / "ckpt"))

    def living(self) -> list[psutil.Process]:
        """Return the run's living processes, those included that have overwritten their environment since a sample."""
        return list(dict.fromkeys([*of_run(self.run_dir), *filter(lives, self.lives)]))

    def count_alarms(self) -> None:
        """Count the proofs that failed since the last call. Call it at every end: a resume removes rows."""
        columns = metrics.read(self.run_dir)
        times = columns.get("time", [])
        for name in self.alarms:
            values = zip(times, columns.get(name, []), strict=False)
            self.alarms[name] += sum(value or 0.0 for time, value in values if time > self._read_until)
        self._read_until = max([self._read_until, *times])

    def growth(self) -> dict[str, dict[str, Any]]:
        """Return the growth of every kind of process, over the lives that are long enough."""
        by_role: dict[str, list[tuple[Life, Growth]]] = defaultdict(list)
        for life in self.lives.values():
            grew = life.growth(self.settle)
            if grew is not None:
                by_role[life.role].append((life, grew))
        return {role: _summary(lives) for role, lives in sorted(by_role.items())}

    def table(self) -> dict[str, list[list[Sample]]]:
        """Return the samples by kind of process, a list for each life."""
        by_role: dict[str, list[list[Sample]]] = defaultdict(list)
        for life in self.lives.values():
            by_role[life.role].append(life.samples)
        return by_role


def _summary(lives: list[tuple[Life, Growth]]) -> dict[str, Any]:
    updates = sum(grew.updates for _, grew in lives)
    return {
        "lives": len(lives),
        "updates": round(updates),
        "memory_mib_max": round(max(grew.memory_mib for _, grew in lives), 1),
        "memory_mib_per_update": round(sum(grew.memory_mib for _, grew in lives) / updates, 4) if updates else None,
        "peak_mib": round(max(sample.memory_mib for life, _ in lives for sample in life.samples), 1),
        "descriptors_max": max(grew.descriptors for _, grew in lives),
    }


def smaps(pid: int) -> dict[str, int]:
    """Return what a process holds in bytes, by the names of /proc/PID/smaps_rollup, such as `Pss_Anon`.

    The kernel walks the process's page tables for it. Linux gives the parts of `Pss` since 5.4.

    Raises:
        OSError: It is gone or may not be read.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(kib) << 10 for name, kib in re.findall(r"^(\w+): +(\d+) kB$", "\n".join(lines), re.MULTILINE)}


def own_memory(parts: Mapping[str, int]) -> int:
    """Return the bytes that a process has of its own or shares in /dev/shm, of what `smaps` says."""
    return parts["Pss_Anon"] + parts["Pss_Shmem"]


def latest_step(run_dir: Path) -> int:
    """Return the step of the last whole row of metrics.jsonl, 0 if there is none. Reads the end of the file only."""
    try:
        with (run_dir / metrics.FILE).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return 0
    for line in reversed(lines):
        with suppress(ValueError, KeyError, TypeError):
            return int(json.loads(line)["step"])
    return 0


def role_of(process: psutil.Process) -> str:
    """Return what a process is in the run: a Ray actor's class, a daemon's name, a module of ours."""
    words = process.cmdline()
    if words and words[0].startswith("ray::"):
        return words[0].partition(".")[0]
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    return Path(words[0]).name if words else process.name()


def pushes_of(run_dir: Path) -> list[Path]:
    """Return what pushes of the run have in shared memory."""
    directory = push_directory(run_dir, model_bytes=0)
    return [directory] if directory.exists() else []


def bytes_below(path: Path) -> int:
    """Return the size of a file, or of all files of a directory; what is removed meanwhile counts nothing."""
    total = 0
    for file in _files(path):
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def _files(path: Path) -> Iterable[Path]:
    yield path
    with suppress(OSError):
        yield from path.rglob("*")
