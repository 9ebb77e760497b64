"""Say what killed a process of a run: in the error, and on record for the report and the audit.

    watched(cfg, name)           call it in the process itself, so that its end will be known (process_watch.py)
    end_of(cfg, name)            what is known about its end, once a call to it has failed
    RUN/lost.jsonl               one line for each process that a run has lost (telemetry/lost.py)

Only ends that the controller did not cause are on record.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..config import Config
from ..telemetry.lost import MEMORY_REMEDY, in_words, put_on_record
from .process_watch import records, watch

ENDS = Path("logs") / "ends"
RECORD_S = 8.0
"""Most seconds to wait for the record of a process that died: its watcher writes it at once, but may itself stand still
for seconds on a busy node, and a shared directory takes a while."""
DESCENDANT_S = 1.5
"""The same if it is not certain that a process died."""
RELATED_S = 60.0
"""The end of a descendant belongs to a death if it was at most so many seconds before."""
AT_ONCE_S = 10.0
"""Calls within so many seconds ask about the same death of a process: a successor takes longer to start."""
ALMOST_FULL = 0.85
"""Share of a node's memory in use from which a SIGKILL from outside may have been for memory."""

_answers: dict[tuple[Path, str], tuple[float, asyncio.Future[str]]] = {}


def watched(cfg: Config, name: str, pid: int | None = None, *, descendants: bool = True) -> None:
    """Watch this process, or `pid`, under the name for which `end_of` is called; see process_watch.watch."""
    _answers.pop((cfg.run_dir, name), None)  # That answer is of an earlier process, and this one has an end of its own.
    watch(cfg.run_dir / ENDS, name, pid, descendants=descendants)


async def end_of(cfg: Config, name: str, why: str, *, certain: bool = True) -> str:
    """Return how a process of the run ended, as a sentence without its full stop, and put it on record.

    When a process dies, many calls fail. Those within AT_ONCE_S of the first get its answer, so the death is on record
    once.

    Args:
        cfg: The run's configuration.
        name: Name of the process, as it was given to `watched`.
        why: What is known from elsewhere; the sentence begins with it.
        certain: Whether the process is known to be dead. If not, maybe only one of its descendants is.
    """
    key = (cfg.run_dir, name)
    asked_at, answer = _answers.get(key, (-AT_ONCE_S, None))
    if answer is None or time.monotonic() - asked_at > AT_ONCE_S:
        answer = asyncio.ensure_future(asyncio.to_thread(_look_up, cfg.run_dir, name, why, certain))
        _answers[key] = (time.monotonic(), answer)
    return await asyncio.shield(answer)


async def end_of_child(cfg: Config, name: str, pid: int, why: str) -> str:
    """Return how a descendant of the process `name` ended, as `end_of` does, and put it on record."""
    return await end_of(cfg, f"{name}.{pid}", why, certain=False)


def _look_up(run_dir: Path, name: str, why: str, certain: bool) -> str:
    """Do what `end_of` does, in a thread."""
    ends = _wait_for_records(run_dir / ENDS, name, certain)
    sentence = "; ".join([why.rstrip("."), *map(in_words, ends)])
    if any(_may_be_memory(record) for record in ends) and MEMORY_REMEDY not in sentence:
        sentence += f". {MEMORY_REMEDY}"
    if certain or ends:
        put_on_record(run_dir, name, why, ends)
    return sentence


def _wait_for_records(directory: Path, name: str, certain: bool) -> list[dict[str, Any]]:
    """Return the records of a process and its descendants, and remove them, because they are reported once.

    Of a process that certainly died its own record is waited for: those of its descendants are written before.
    """
    own_record = directory / f"{name}.json"
    deadline = time.monotonic() + (RECORD_S if certain else DESCENDANT_S)
    while directory.is_dir() and time.monotonic() < deadline:
        if own_record.exists() or (records(directory, name) and not certain):
            break
        time.sleep(0.05)
    ends = []
    for path in records(directory, name):
        with suppress(OSError, ValueError):
            ends.append(json.loads(path.read_text()))
        path.unlink(missing_ok=True)
    # Times are of the process's own node, whose clock may differ from ours.
    died_at = next((record["time"] for record in ends if record["name"] == name), time.time())
    # A worker that was killed long ago, for its deadline, is not part of this death.
    return [record for record in ends if record["name"] == name or died_at - record["time"] < RELATED_S]


def _may_be_memory(record: dict[str, Any]) -> bool:
    if record["signal"] != signal.SIGKILL:  # A process that ended with its own code was not killed.
        return False
    full = record["node_used_bytes"] >= ALMOST_FULL * record["node_total_bytes"]
    return bool(record["by_kernel_for_memory"]) or full
