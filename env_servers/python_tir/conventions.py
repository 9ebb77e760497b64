"""Conventions: an execution -> what the model reads of it, and whether the call counts as one that went well. One
function per method.

    zerotir   the default (spec section 2): stdout as it is, or the whole traceback without file names and carets
    torl      went well: exit code 0, or anything on stdout, which is shown then; a crash after it stays hidden. Else
              stderr
    retool    stdout stripped, or the last line of the error; of more than 400 characters the ends
    artist    stdout stripped, or the whole traceback; a program that says nothing is told so

A session's task asks for one, task["observation"]; the turn protocol of a method asks by itself. Facts about the
execution (signals) are the same under all of them. Sources: docs/protocols.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .observation import MEMORY_LIMIT, TIME_LIMIT, clean_traceback
from .sandbox import Execution

TIMED_OUT = "timeout_decorator.timeout_decorator.TimeoutError: 'Timed Out'"
"""What ToRL's client and ReTool's executor say of code that ran into the time limit."""
MAX_CHARS = 400
SILENT = "The code ran and printed nothing. Use print() to see a value."


class Seen(NamedTuple):
    """`went_well`: outcome "ok", else "model_error"."""

    text: str
    went_well: bool


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def zerotir(e: Execution, error: str | None) -> Seen:
    """A flood of output reads as the start of it: the trainer's length rule replaces it."""
    if error is None or error == "output_flood":
        return Seen(_text(e.stdout), error is None)
    return Seen(_limit(e, error) or clean_traceback(_text(e.stderr)), False)


def torl(e: Execution, error: str | None) -> Seen:
    if e.return_code == 0 or e.stdout:
        return Seen(_text(e.stdout), True)
    return Seen(TIMED_OUT if error == "time_limit" else _text(e.stderr).strip() or _limit(e, error), False)


def retool(e: Execution, error: str | None) -> Seen:
    if error is None or error == "output_flood":
        return Seen(ends(_text(e.stdout).strip()), error is None)
    if error == "time_limit":
        return Seen(TIMED_OUT, False)
    lines = _text(e.stderr).strip().splitlines()
    return Seen(ends(_limit(e, error) or (lines[-1] if lines else exit_line(e))), False)


def artist(e: Execution, error: str | None) -> Seen:
    if error is None or error == "output_flood":
        return Seen(_text(e.stdout).strip() or (SILENT if error is None else ""), error is None)
    return Seen(_limit(e, error) or clean_traceback(_text(e.stderr)).strip() or exit_line(e), False)


def _limit(e: Execution, error: str | None) -> str:
    """The status word of a program that we ended, "" for one that ended by itself."""
    if error == "time_limit":
        return TIME_LIMIT
    return MEMORY_LIMIT if e.killed == "memory" else ""


def exit_line(e: Execution) -> str:
    """sys.exit(3), or death by a signal: nothing is on stderr."""
    return "SystemExit" if e.return_code is None or e.return_code < 0 else f"SystemExit: {e.return_code}"


def ends(text: str) -> str:
    """The first and last half of MAX_CHARS, where a text has more characters."""
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS // 2]}...{text[-MAX_CHARS // 2 :]}"


CONVENTIONS: dict[str, Callable[[Execution, str | None], Seen]] = {
    "zerotir": zerotir,
    "torl": torl,
    "retool": retool,
    "artist": artist,
}
DEFAULT = "zerotir"


def wanted(task: dict[str, Any]) -> str:
    """The convention that a session's task asks for. Raises ValueError for one that is not known."""
    name = task.get("observation", DEFAULT)
    if not isinstance(name, str) or name not in CONVENTIONS:
        raise ValueError(
            f'task["observation"] is {name!r}. Known: {", ".join(CONVENTIONS)}. Send one of them, or leave it out.'
        )
    return name
