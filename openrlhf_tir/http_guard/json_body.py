"""Refuse what Python's JSON parser takes and nobody can send on: NaN, infinities, lone surrogates, endless nesting.

`json.loads` reads all of these; they fail only later, in a handler, a log line or the reply, as an internal error. So
they are refused before any handler runs: 422, in the form of FastAPI's own refusals, with the place but not the input.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic_core import from_json

_OVERFLOWS = re.compile(rb"[eE]\+?\d{3}|\d{309}")
"""Matches a part of every number that reads as infinity. It may match text as well."""
MAX_ERRORS = 20
MAX_CHARS = 300
"""Longest message and longest key in an answer: both may quote what the client sent."""


def is_json(content_type: bytes) -> bool:
    """Return True if FastAPI would read a body of this type as JSON."""
    kind = content_type.split(b";", 1)[0].strip().lower()
    return kind == b"application/json" or (kind.startswith(b"application/") and kind.endswith(b"+json"))


def fault(body: bytes) -> dict[str, Any] | None:
    """Return what is wrong with a body that claims to be JSON, in FastAPI's form; None if nothing is."""
    try:
        value = from_json(body, allow_inf_nan=False, cache_strings="none")
    except ValueError as e:
        return {"type": "json_invalid", "loc": ["body", _position(body)], "msg": f"JSON decode error: {e}"[:MAX_CHARS]}
    if _OVERFLOWS.search(body) and _has_infinity(value):
        return {"type": "finite_number", "loc": ["body"], "msg": "A number is too large. Numbers must be finite."}
    return None


def _position(body: bytes) -> int:
    """Return where Python's parser, whose offsets FastAPI reports, stops; 0 if it does not."""
    try:
        json.loads(body)
    except json.JSONDecodeError as e:
        return e.pos
    except (ValueError, RecursionError):  # not UTF-8, too many digits, too deep
        pass
    return 0


def _has_infinity(value: Any) -> bool:
    """Return True if a parsed body holds an infinity."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            left.extend(item.values())
        elif isinstance(item, list):
            left.extend(item)
        elif isinstance(item, float) and not math.isfinite(item):
            return True
    return False


def answer_malformed(app: FastAPI) -> None:
    """Have the app answer a malformed body with 422, without the input, which may be secret, huge or not JSON.

    The answer is bounded, however many items of a batch are wrong.
    """

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, e: RequestValidationError) -> JSONResponse:
        return JSONResponse({"detail": [_short(error) for error in e.errors()[:MAX_ERRORS]]}, 422)


def _short(error: dict[str, Any]) -> dict[str, Any]:
    loc = [part if isinstance(part, int) else str(part)[:MAX_CHARS] for part in error["loc"]]
    return {"type": error["type"], "loc": loc, "msg": error["msg"][:MAX_CHARS]}
