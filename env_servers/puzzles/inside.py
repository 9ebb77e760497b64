"""The program of a call in the sandbox: it reads request.json in the working directory and prints one line of JSON.

    {"do": "make", "task": Task, "solve", "cpu_s"}
        -> {"question", "entry", "solution"}, or {"refused": reason}: the task's fault
    {"do": "score", "task": Task, "entry", "answer", "cpu_s"}
        -> {"score", "error"}, or {"fault": reason}: no answer could be scored

`entry` is reasoning-gym's record, pickled; the server hands it back and never reads it. Using up `cpu_s` seconds of CPU
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
    """Answer one request."""
    reply_fd = os.dup(1)
    os.dup2(2, 1)
    request = json.loads(Path("request.json").read_text())
    import reasoning_gym.factory  # noqa: F401  before the timer, so that the import is not part of the CPU budget

    signal.setitimer(signal.ITIMER_PROF, request["cpu_s"])
    task = Task(**request["task"])
    if request["do"] == "make":
        reply = _make(task, request["solve"])
    else:
        reply = _score(task, request["entry"], request["answer"])
    signal.setitimer(signal.ITIMER_PROF, 0)
    data = json.dumps(reply).encode()
    while data:
        data = data[os.write(reply_fd, data) :]


def _make(task: Task, solve: bool) -> dict[str, Any]:
    """Return the reply to a "make" request."""
    try:
        puzzle = make_puzzle(task)
    except ValueError as e:
        return {"refused": str(e)}
    entry = base64.b64encode(pickle.dumps(puzzle.entry)).decode()
    return {"question": puzzle.question, "entry": entry, "solution": puzzle.solution() if solve else ""}


def _score(task: Task, entry: str, answer: str) -> dict[str, Any]:
    """Return the reply to a "score" request.

    The data set's own answer is right, word for word, even if it holds what the guard refuses (an Integral that nobody
    could solve). If a scorer raises, that is the answer's fault, unless the scorer also fails on the puzzle's own
    solution or lacks a file or a module.
    """
    from . import guard

    puzzle = Puzzle(pickle.loads(base64.b64decode(entry)), dataset_of(task))
    own_answer = puzzle.entry["answer"]
    if own_answer is not None and answer == str(own_answer).strip():
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
        except Exception as second:
            reason = f"{type(second).__name__}: {second}"
            return {"fault": f"the scorer of {task.name} does not take its own solution either: {reason}"}
        return {"score": 0.0, "error": type(e).__name__}
