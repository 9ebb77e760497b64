"""python -m benchmarks.start_up -- train --recipe NAME --run-dir DIR ...: from the command to the first sampled token.

The last line is JSON.

Runs `openrlhf-tir` with the given arguments and ends it once an engine has sampled a token (of a proof, an evaluation
or a rollout). The arguments must hold --run-dir. Seconds are of the wall clock since the command:

    ray            Ray is up, and the plan is printed
    env_server     the first environment server that the run starts answers
    engine         the first rollout actor has loaded its model and answers
    first_token    that engine has sampled a token

`cpu_s` is what the processes of each kind had used by then. Where it is about the cores times `first_token`, only less
work makes the start faster; where it is much less, something waits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.command import command_parser, end_as_at_ctrl_c
from miniatures.end_process import end_process
from miniatures.reproduce.commands import STOP_S

POLL_S = 0.1
RUN_DIR = ("--run-dir", "--run_dir")
TOKENS = "tir_engine_tokens_generated"
KINDS = {
    "ray::RolloutActor": "rollout actor",
    "EngineCore": "vLLM EngineCore",
    "ray::LearnerRank": "learner",
    "env_servers": "environment server",
    "jobs.reading": "reader of the prompts",
    "ray::": "other Ray workers",
    "ray": "Ray's daemons",
}
"""Part of a process' command line -> what it is; the first that fits counts."""


def run_dir_of(arguments: Sequence[str]) -> Path | None:
    """Return the run directory that the arguments give, as `--run-dir DIR` or `--run-dir=DIR`; None without one."""
    for number, word in enumerate(arguments):
        flag, given, value = word.partition("=")
        if flag not in RUN_DIR:
            continue
        if given:
            return Path(value)
        return Path(arguments[number + 1]) if number + 1 < len(arguments) else None
    return None


def kind_of(command: Sequence[str]) -> str:
    """Return what a process below the driver's is, by its command line."""
    line = " ".join(command)
    return next((kind for part, kind in KINDS.items() if part in line), "others")


def cpu_by_kind(driver: psutil.Process) -> dict[str, float]:
    """Return CPU seconds by kind of process. Processes that are gone already are left out."""
    seconds: Counter[str] = Counter()
    for process in [driver, *driver.children(recursive=True)]:
        with suppress(psutil.Error):
            used = process.cpu_times()
            kind = "driver" if process == driver else kind_of(process.cmdline())
            seconds[kind] += used.user + used.system
    return {kind: round(value, 1) for kind, value in seconds.most_common()}


def tokens_of(endpoint: Path) -> float:
    """Return how many tokens the actor of this endpoint file has sampled; 0.0 if it does not answer."""
    with suppress(OSError), urllib.request.urlopen(f"{endpoint.read_text().strip()}/metrics", timeout=5) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(TOKENS):
                return float(line.rsplit(" ", 1)[1])
    return 0.0


def measure(arguments: Sequence[str], run_dir: Path, limit_s: float) -> dict[str, object]:
    """Run the command up to its first token and return when it had reached what.

    Raises:
        RuntimeError: It ended before, or did not get there within `limit_s`.
    """
    for left in [*run_dir.glob("*.port"), *run_dir.glob("endpoints/*")]:
        left.unlink()
    run_dir.mkdir(parents=True, exist_ok=True)
    log = run_dir / "start_up.log"
    began = time.monotonic()
    reached: dict[str, float] = {}
    with log.open("w") as output:
        command = [sys.executable, "-m", "openrlhf_tir.cli", *arguments]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
    driver = psutil.Process(process.pid)
    try:
        while "first_token" not in reached:
            now = time.monotonic() - began
            if process.poll() is not None or now > limit_s:
                raise RuntimeError(f"No token after {now:.0f} s (exit code {process.poll()}); see {log}.")
            endpoints = [*run_dir.glob("endpoints/*")]
            marks = {
                "ray": "plan:" in log.read_text(),
                "env_server": any(run_dir.glob("*.port")),
                "engine": bool(endpoints),
                "first_token": any(tokens_of(endpoint) for endpoint in endpoints),
            }
            for name, is_reached in marks.items():
                if is_reached:
                    reached.setdefault(name, round(now, 1))
            time.sleep(POLL_S)
        return {"seconds": reached, "cpu_s": cpu_by_kind(driver), "cores": os.cpu_count()}
    finally:
        end_process(process, STOP_S)


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--limit", type=float, default=600, help="seconds (default: %(default)s)")
    parser.add_argument("arguments", nargs="+", help="of openrlhf-tir, after --")
    args = parser.parse_args()
    run_dir = run_dir_of(args.arguments)
    if run_dir is None:
        parser.error(f"the arguments have no {RUN_DIR[0]}: give the run a directory, where its marks are looked for")
    end_as_at_ctrl_c()
    print(json.dumps(measure(args.arguments, run_dir, args.limit)))


if __name__ == "__main__":
    main()
