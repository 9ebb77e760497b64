"""Lost processes: what killed a process of a run, in words for the error, and on record for the report and the audit.

    watched(cfg, name)           in the process itself: its end will be known (process_watch.py)
    end_of(cfg, name)            what is known of it, once a call to it has failed
    RUN/lost.jsonl               one line for each process that a run has lost (logs/lost.py)

Only what the controller has missed is on record: processes that it ends itself are not.
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
from ..logs.lost import MEMORY_REMEDY, in_words, put_on_record
from .process_watch import records, watch

ENDS = Path("logs") / "ends"
RECORD_S = 3.0
"""Seconds to wait for the record of a process that has died: its watcher looks once a second at least, and a shared
directory takes its time."""
DESCENDANT_S = 1.5
"""The same where it is not certain that anything has died."""
RELATED_S = 60.0
"""Seconds before a death within which the end of a descendant belongs to it."""
AT_ONCE_S = 10.0
"""Seconds within which all that ask about a process ask about the same death: a successor takes longer to start."""
ALMOST_FULL = 0.85
"""Share of a node's memory in use from which a SIGKILL from outside may be one for memory."""

_answers: dict[tuple[Path, str], tuple[float, asyncio.Future[str]]] = {}


def watched(cfg: Config, name: str, pid: int | None = None, *, descendants: bool = True) -> None:
    """Have this process, or `pid`, watched under the name by which `end_of` is asked; see process_watch.watch."""
    watch(cfg.run_dir / ENDS, name, pid, descendants=descendants)


async def end_of(cfg: Config, name: str, why: str, *, certain: bool = True) -> str:
    """Return how a process of the run ended, in a sentence without its full stop, and put it on record.

    Many calls fail when one process dies: those that ask within AT_ONCE_S of the first get its answer, and the death is
    on record once.

    Args:
        name: Of the process, as it was given to `watched`.
        why: What is known from elsewhere, with which the sentence begins.
        certain: Whether the process is known to be dead. If not, only one of its descendants may be.
    """
    key = (cfg.run_dir, name)
    asked_at, answer = _answers.get(key, (-AT_ONCE_S, None))
    if answer is None or time.monotonic() - asked_at > AT_ONCE_S:
        answer = asyncio.ensure_future(asyncio.to_thread(_looked_up, cfg.run_dir, name, why, certain))
        _answers[key] = (time.monotonic(), answer)
    return await asyncio.shield(answer)


async def end_of_child(cfg: Config, name: str, pid: int, why: str) -> str:
    """Return how a descendant of the process `name` ended, as `end_of` does, and put it on record."""
    return await end_of(cfg, f"{name}.{pid}", why, certain=False)


def _looked_up(run_dir: Path, name: str, why: str, certain: bool) -> str:
    """Do what `end_of` does, in a thread."""
    found = _wait_for_records(run_dir / ENDS, name, RECORD_S if certain else DESCENDANT_S)
    told = "; ".join([why.rstrip("."), *map(in_words, found)])
    if any(_may_be_memory(record) for record in found) and MEMORY_REMEDY not in told:
        told += f". {MEMORY_REMEDY}"
    if certain or found:
        put_on_record(run_dir, name, why, found)
    return told


def _wait_for_records(directory: Path, name: str, wait_s: float) -> list[dict[str, Any]]:
    """Return the records of a process and its descendants, and remove them: they are told once."""
    deadline = time.monotonic() + wait_s
    while not (paths := records(directory, name)) and directory.is_dir() and time.monotonic() < deadline:
        time.sleep(0.05)
    found = []
    for path in paths:
        with suppress(OSError, ValueError):
            found.append(json.loads(path.read_text()))
        path.unlink(missing_ok=True)
    # A worker that was killed long ago, for its deadline, has nothing to do with it.
    return [record for record in found if record["name"] == name or time.time() - record["time"] < RELATED_S]


def _may_be_memory(record: dict[str, Any]) -> bool:
    if record["signal"] != signal.SIGKILL:  # whoever ends with a code of its own was not killed
        return False
    full = record["node_used_bytes"] >= ALMOST_FULL * record["node_total_bytes"]
    return bool(record["by_kernel_for_memory"]) or full
