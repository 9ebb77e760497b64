"""python -m benchmarks.memory_watch RUN_DIR [--every S] [--out FILE]: what each process of a living run holds.

Start it beside a run, from another shell, as early as you can: Ray's daemons are found as descendants of the command.
It ends with the run, or at Ctrl-C. Every sample is a line of FILE; `--read FILE` gives the figures of such a file once
more.

    role        the class of a Ray actor, the name of a daemon, a module of ours
    peak        the most that all processes of the role held together, in PSS, and what it consisted of: memory of its
                own (anon), files that are mapped (libraries, a model's weights), shared memory
    growth      of one process: a least-squares line through the lowest memory of each update, from update 5 on,
                without mapped files, whose part changes with the other processes that map them

PSS is read from /proc/PID/smaps_rollup, for which the kernel walks the process's page tables. The last line is JSON.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from benchmarks.command import command_parser, end_as_at_ctrl_c
from benchmarks.soak_watch import latest_step, role_of, smaps
from openrlhf_tir.machine.process_memory import RunProcesses, all_processes

KINDS = {"pss": "Pss", "anon": "Pss_Anon", "file": "Pss_File", "shared": "Pss_Shmem"}
"""What is read of a process -> its line in smaps_rollup."""
SETTLED = 5
"""The first update that counts for growth."""
MIN_UPDATES = 5
"""Updates that a process must have lived for, from SETTLED on, so that its growth is given."""
START_S = 600.0
"""Seconds until a run has to be there."""


class Held(NamedTuple):
    """What one process holds at one moment, in bytes."""

    pid: int
    role: str
    pss: int
    anon: int
    file: int
    shared: int


class Moment(NamedTuple):
    """One sample of a run.

    Attributes:
        time: Seconds since the epoch.
        update: Updates that the run has made.
        held: What each process holds.
    """

    time: float
    update: int
    held: list[Held]


def moments(run_dir: Path, every: float, pid: int | None = None) -> Iterator[Moment]:
    """Yield a sample every `every` seconds until the run has ended. `pid`: its command, if that does not name its
    directory."""
    command = _command_of(run_dir) if pid is None else psutil.Process(pid)
    processes = RunProcesses(command.pid)
    while _runs(command):
        began = time.monotonic()
        update = latest_step(run_dir)
        readings = [_held(member.process) for member in processes.find()]
        yield Moment(time.time(), update, [held for held in readings if held is not None])
        time.sleep(max(0.0, began + every - time.monotonic()))


def _runs(process: psutil.Process) -> bool:
    """Return False once a process has ended, whether or not its parent has asked how."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _command_of(run_dir: Path) -> psutil.Process:
    """Return the oldest process that has the run's directory in its command line.

    Raises:
        SystemExit: None was started in time.
    """
    paths = {str(run_dir), str(run_dir.absolute())}
    names = paths | {f"--run-dir={path}" for path in paths}
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        candidates = [
            info.process
            for info in all_processes()
            if names & {*info.command} and not any("memory_watch" in word for word in info.command)
        ]
        with suppress(psutil.Error):
            if candidates:
                return min(candidates, key=lambda process: process.create_time())
        time.sleep(1.0)
    raise SystemExit(f"No process has {run_dir} in its command line. Give its --pid.")


def _held(process: psutil.Process) -> Held | None:
    """Return what a process holds; None if it is gone or may not be read."""
    try:
        memory = smaps(process.pid)
        return Held(process.pid, role_of(process), *(memory.get(name, 0) for name in KINDS.values()))
    except (OSError, psutil.Error):
        return None


def read(file: Path) -> list[Moment]:
    """Return the samples of a file. A last line without its end, which a kill tore, is no sample."""
    whole, _, _ = file.read_text().rpartition("\n")
    lines = map(json.loads, whole.splitlines())
    return [Moment(at, update, [Held(*held) for held in all_held]) for at, update, all_held in lines]


def figures(samples: Iterable[Moment]) -> dict[str, dict[str, Any]]:
    """Return by role the peak in GB with its parts, and the growth of its processes in MB per update."""
    peaks: dict[str, dict[str, int]] = {}
    whole = 0
    lowest: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for sample in samples:
        by_role: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(KINDS, 0))
        for held in sample.held:
            for kind in KINDS:
                by_role[held.role][kind] += getattr(held, kind)
            of_process = lowest[held.role, held.pid]
            own = held.anon + held.shared
            of_process[sample.update] = min(own, of_process.get(sample.update, own))
        for role, parts in by_role.items():
            if parts["pss"] > peaks.get(role, {}).get("pss", 0):
                peaks[role] = parts
        whole = max(whole, sum(parts["pss"] for parts in by_role.values()))
    of_roles: dict[str, dict[str, Any]] = {
        role: {f"{kind}_gb": round(size / 1e9, 3) for kind, size in parts.items()}
        for role, parts in sorted(peaks.items(), key=lambda peak: -peak[1]["pss"])
    }
    for (role, _), by_update in lowest.items():
        grew = growth(by_update)
        if grew is not None:
            of_roles[role].setdefault("growth_mb_per_update", []).append(round(grew / 1e6, 2))
    return {"all": {"pss_gb": round(whole / 1e9, 3)}} | of_roles


def growth(by_update: dict[int, int]) -> float | None:
    """Return the slope of the line through a process's figures by update; None if there are too few of them.

    The last update is left out: the run's last evaluation and checkpoint belong to it.
    """
    updates = sorted(update for update in by_update if SETTLED <= update < max(by_update))
    if len(updates) < MIN_UPDATES:
        return None
    return float(np.polyfit(updates, [by_update[update] for update in updates], 1)[0])


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("run_dir", type=Path, nargs="?", help="directory of the run, as in its --run-dir")
    parser.add_argument("--pid", type=int, help="its command, if that does not name the directory")
    parser.add_argument("--every", type=float, default=5.0, metavar="S", help="seconds between samples [%(default)s]")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where samples go [RUN_DIR.memory.jsonl]")
    parser.add_argument("--read", type=Path, metavar="FILE", help="no run, but the samples in FILE")
    args = parser.parse_args()
    if (args.run_dir is None) == (args.read is None):
        parser.error("give the directory of a run, or --read FILE")
    if args.read is None:
        out = args.out or args.run_dir.with_name(f"{args.run_dir.name}.memory.jsonl")
        out.parent.mkdir(parents=True, exist_ok=True)
        end_as_at_ctrl_c()
        with out.open("w") as file, suppress(KeyboardInterrupt):
            for moment in moments(args.run_dir, args.every, args.pid):
                file.write(json.dumps(moment) + "\n")
                file.flush()
    by_role = figures(read(args.read or out))
    for role, of_role in by_role.items():
        print(f"{role:32s}" + "  ".join(f"{name} {value}" for name, value in of_role.items()))
    print(json.dumps(by_role))


if __name__ == "__main__":
    main()
