"""What the model reads of an execution, and whether the call counts as successful: one function per method.

    zerotir   the default (spec section 2): stdout unchanged, or the whole traceback without file names and carets
    torl      successful if the exit code is 0 or anything is on stdout, which is then shown: a crash after it stays
              hidden. Otherwise stderr
    retool    stdout stripped, or the last line of the error; of more than 400 characters the two ends
    artist    stdout stripped, or the whole traceback; a program that prints nothing gets a sentence about it
    verl      verl's recipe of ReTool: stdout and stderr, and neither of code that ran into the time limit; of more than
              256 characters the two ends

The task of a session chooses one with task["observation"]; the turn protocol of a method sets it. The signals of an
execution are the same under all of them. The protocols in openrlhf_tir/rollout/protocols name the sources.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .observation import MEMORY_LIMIT, TIME_LIMIT, clean_traceback
from .sandbox import Execution

TIMED_OUT = "timeout_decorator.timeout_decorator.TimeoutError: 'Timed Out'"
"""Text that ToRL's client and ReTool's executor show for code that ran into the time limit."""
MAX_CHARS = 400
"""Characters that ReTool's convention shows."""
VERL_MAX_CHARS = 256
"""Characters that verl's convention shows."""
VERL_UNFINISHED = "no stdout here"
"""Text that verl's convention shows for code that ran into the time limit."""
SILENT = "The code ran and printed nothing. Use print() to see a value."
"""Text that ARTIST's convention shows for code that printed nothing."""


class Reading(NamedTuple):
    """An execution as the model reads it. `succeeded` makes the outcome "ok", otherwise it is "model_error"."""

    text: str
    succeeded: bool


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def zerotir(execution: Execution, error: str | None) -> Reading:
    """ZeroTIR. A flood of output reads as its beginning: the trainer's length rule cuts it further."""
    if error is None or error == "output_flood":
        return Reading(_text(execution.stdout), error is None)
    return Reading(_limit_status(execution, error) or clean_traceback(_text(execution.stderr)), False)


def torl(execution: Execution, error: str | None) -> Reading:
    """ToRL."""
    if execution.return_code == 0 or execution.stdout:
        return Reading(_text(execution.stdout), True)
    if error == "time_limit":
        return Reading(TIMED_OUT, False)
    return Reading(_text(execution.stderr).strip() or _limit_status(execution, error), False)


def retool(execution: Execution, error: str | None) -> Reading:
    """ReTool."""
    if error is None or error == "output_flood":
        return Reading(ends(_text(execution.stdout).strip()), error is None)
    if error == "time_limit":
        return Reading(TIMED_OUT, False)
    # Only a newline ends a line here: a message may hold other marks that end lines, such as U+2028.
    last_line = _text(execution.stderr).strip().split("\n")[-1].strip() or exit_line(execution)
    return Reading(ends(_limit_status(execution, error) or last_line), False)


def artist(execution: Execution, error: str | None) -> Reading:
    """ARTIST."""
    if error is None or error == "output_flood":
        text = _text(execution.stdout).strip()
        if not text and error is None:
            text = SILENT
        return Reading(text, error is None)
    traceback = clean_traceback(_text(execution.stderr)).strip()
    return Reading(_limit_status(execution, error) or traceback or exit_line(execution), False)


def verl(execution: Execution, error: str | None) -> Reading:
    """verl's recipe of ReTool."""
    if error == "time_limit":
        return Reading(VERL_UNFINISHED, False)
    text = _text(execution.stdout) + _text(execution.stderr) + _limit_status(execution, error)
    return Reading(ends(text, VERL_MAX_CHARS, "...(truncated)..."), error is None)


def _limit_status(execution: Execution, error: str | None) -> str:
    """Return the status word of a program that was stopped at a limit, "" for one that ended by itself."""
    if error == "time_limit":
        return TIME_LIMIT
    return MEMORY_LIMIT if execution.killed == "memory" else ""


def exit_line(execution: Execution) -> str:
    """Return a line for a program that left nothing on stderr: it called sys.exit(3), or died by a signal."""
    if execution.return_code is None or execution.return_code < 0:
        return "SystemExit"
    return f"SystemExit: {execution.return_code}"


def ends(text: str, max_chars: int = MAX_CHARS, left_out: str = "...") -> str:
    """Return the first and the last half of `max_chars` with a mark between them, if a text has more characters."""
    if len(text) <= max_chars:
        return text
    return f"{text[: max_chars // 2]}{left_out}{text[-max_chars // 2 :]}"


CONVENTIONS: dict[str, Callable[[Execution, str | None], Reading]] = {
    "zerotir": zerotir,
    "torl": torl,
    "retool": retool,
    "artist": artist,
    "verl": verl,
}
DEFAULT = "zerotir"


def convention_of(task: dict[str, Any]) -> str:
    """Return the name of the convention that a task asks for. Raises ValueError for an unknown one."""
    name = task.get("observation", DEFAULT)
    if not isinstance(name, str) or name not in CONVENTIONS:
        raise ValueError(
            f'task["observation"] is {name!r}. Known: {", ".join(CONVENTIONS)}. Send one of them, or leave it out.'
        )
    return name
