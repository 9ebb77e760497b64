"""Inside: the program of a call in the sandbox. request.json in the working directory -> one line of JSON on stdout.

    {"do": "make", "task": Task, "solve", "cpu_s"}
        -> {"question", "entry", "solution"}, or {"refused": why}: the task's fault
    {"do": "score", "task": Task, "entry", "answer", "cpu_s"}
        -> {"score", "error"}, or {"fault": why}: nobody's answer could be scored

`entry` is reasoning-gym's record, packed; the server hands it back and never reads it. Using up `cpu_s` seconds of CPU
ends the process with SIGPROF. What a data set prints goes to stderr.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
from pathlib import Path
from typing import Any

from .gym import Puzzle, Task, dataset_of, make_puzzle


def main() -> None:
    reply_fd = os.dup(1)
    os.dup2(2, 1)
    request = json.loads(Path("request.json").read_text())
    import reasoning_gym.factory  # noqa: F401  where it is not loaded already its import is nobody's CPU

    signal.setitimer(signal.ITIMER_PROF, request["cpu_s"])
    task = Task(**request["task"])
    reply = (
        _make(task, request["solve"]) if request["do"] == "make" else _score(task, request["entry"], request["answer"])
    )
    signal.setitimer(signal.ITIMER_PROF, 0)
    data = json.dumps(reply).encode()
    while data:
        data = data[os.write(reply_fd, data) :]


def _make(task: Task, solve: bool) -> dict[str, Any]:
    try:
        puzzle = make_puzzle(task)
    except ValueError as e:
        return {"refused": str(e)}
    entry = base64.b64encode(pickle.dumps(puzzle.entry)).decode()
    return {"question": puzzle.question, "entry": entry, "solution": puzzle.solution() if solve else ""}


def _score(task: Task, entry: str, answer: str) -> dict[str, Any]:
    """The data set's own answer, word for word, is right, also where it holds what the guard refuses (an Integral that
    nobody could solve).

    What a scorer raises is the answer's fault if it scores the puzzle's own solution all the same, and does not lack a
    file or a module."""
    from . import guard

    puzzle = Puzzle(pickle.loads(base64.b64decode(entry)), dataset_of(task))
    own = puzzle.entry["answer"]
    if own is not None and answer == str(own).strip():
        return {"score": 1.0, "error": None}
    guard.install()
    try:
        return {"score": puzzle.score(answer), "error": None}
    except (MemoryError, RecursionError) as e:
        return {"score": 0.0, "error": type(e).__name__}
    except (ImportError, OSError) as e:
        return {"fault": f"{type(e).__name__}: {e}"}
    except Exception as e:
        try:
            puzzle.score(puzzle.solution())
        except Exception as again:
            return {
                "fault": (
                    f"the scorer of {task.name} does not take its own solution either: {type(again).__name__}: {again}"
                )
            }
        return {"score": 0.0, "error": type(e).__name__}
