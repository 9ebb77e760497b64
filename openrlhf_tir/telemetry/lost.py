"""The record of a run's lost processes: RUN/lost.jsonl, one line each, and the same in words for people.

A line is {"time", "process", "why": what the controller saw, "ends": what the watchers saw (process_watch.py)}.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..machine.sizes import size

MEMORY_REMEDY = (
    "If it was killed for memory: lower train.max_tokens_per_gpu, vllm.kv_cache_mib, vllm.num_engines or"
    " actor.num_gpus_per_node, or give the node more (`openrlhf-tir size` says what each process takes)"
)
"""What to change in a run whose process was killed for memory."""

FILE = "lost.jsonl"

log = logging.getLogger(__name__)


def in_words(record: dict[str, Any]) -> str:
    """Return in words how a process ended: its signal or code, its peak memory, and its node's memory."""
    number = record["signal"]
    if number:
        description = f"was killed by {_signal_name(number)}"
        if record["by_kernel_for_memory"]:
            description += ", by the kernel because memory ran out"
    elif record["code"] is None:
        description = "ended, by a signal or not: this kernel does not tell"
    else:
        description = f"ended with code {record['code']}"
    used, total = record["node_used_bytes"], record["node_total_bytes"]
    return (
        f"process {record['pid']} ({_program(record)}) {description}; its peak memory was"
        f" {size(record['peak_bytes'])}, its node {record['node']} had {size(used)} of {size(total)} in use"
    )


def _program(record: dict[str, Any]) -> str:
    """Return the name of a process; for a descendant also the end of its command line, which says what it is."""
    is_descendant = str(record["name"]).rpartition(".")[2] == str(record["pid"])
    return f"{record['name']}: {record['command'][-60:]}" if is_descendant else record["name"]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def put_on_record(run_dir: Path, name: str, why: str, ends: Sequence[dict[str, Any]]) -> None:
    """Append a lost process to the file. If the disk refuses, log a warning."""
    line = json.dumps({"time": time.time(), "process": name, "why": why, "ends": [*ends]}) + "\n"
    try:
        descriptor = os.open(run_dir / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            # One call, because rollout actors of other nodes append to the file too.
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        log.warning("%s is not on record as lost: %s", name, error)


def lost_processes(run_dir: Path) -> Iterator[str]:
    """Yield a line for each process that the run has lost, in order."""
    with suppress(OSError):
        for line in (run_dir / FILE).read_text(errors="replace").splitlines():
            try:
                entry = json.loads(line)
                when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["time"]))
                ends = "; ".join(map(in_words, entry["ends"])) or "how it ended is not known"
                yield f"{when} {entry['process']}: {ends} ({entry['why']})"
            except (ValueError, KeyError, TypeError):
                yield f"a line of {FILE} cannot be read: {line[:80]}"
