"""Answers to BFCL's single-turn questions: what the possible answers allow, and that with one thing otherwise."""

from __future__ import annotations

import random
from typing import Any

KINDS = (
    *(
        "first", "any allowed", "any allowed", "spelled otherwise", "fenced", "without brackets", "with a word before",
        "in words", "nothing", "empty list",
    ),
    *(
        "wrong value", "missing", "one more argument", "other function", "as text", "as float", "as int", "true",
        "in a list", "by position", "null",
    ),
    *("reversed", "one call more", "one call less", "arithmetic", "variable"),
)  # fmt: skip
Made = list[tuple[str, dict[str, Any]]]


def text_of(answers: list[dict[str, Any]], functions: list[dict[str, Any]], kind: str, rng: random.Random) -> str:
    """`answers`: [{name: {parameter: [allowed values]}}], empty where nothing is to be called; then a call of the first
    function stands in."""
    calls: Made = [(name, _values(allowed, kind, rng)) for answer in answers for name, allowed in answer.items()] or [
        (functions[0]["name"] if functions else "f", {"x": 1})
    ]
    at = rng.randrange(len(calls))
    name, given = calls[at]
    key = rng.choice(sorted(given)) if given else None
    match kind:
        case "in words":
            return "None of the functions fits, I am afraid."
        case "nothing":
            return ""
        case "empty list":
            return "[]"
        case "fenced":
            return f"```\n{written(calls)}\n```"
        case "without brackets":
            return written(calls)[1:-1]
        case "with a word before":
            return f"Sure: {written(calls)}"
        case "missing" if key:
            given.pop(key)
        case "one more argument":
            given["zzz"] = 1
        case "other function":
            calls[at] = (f"{name}_x", given)
        case "reversed":
            calls.reverse()
        case "one call more":
            calls.append(calls[at])
        case "one call less":
            calls.pop(at)
        case "by position":
            return f"[{name}({', '.join(map(repr, given.values()))})]"
        case _ if key:
            given[key] = _otherwise(given[key], kind)
    return written(calls)


class Source(str):
    """An argument that is written as it is."""

    def __repr__(self) -> str:
        return str(self)


def _otherwise(value: Any, kind: str) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match kind:
        case "wrong value":
            return (
                value + 1
                if number
                else not value
                if isinstance(value, bool)
                else f"{value} otherwise"
                if isinstance(value, str)
                else [value, value]
            )
        case "as text":
            return str(value)
        case "as float" if number:
            return float(value)
        case "as int" if number:
            return int(value)
        case "true":
            return True
        case "in a list":
            return [value]
        case "null":
            return None
        case "arithmetic" if number:
            return Source(f"{value} * 1")
        case "variable":
            return Source("a_variable")
        case "spelled otherwise" if isinstance(value, str):
            return value.upper().replace(" ", "-").replace(",", "")
    return value


def _values(allowed: dict[str, list[Any]], kind: str, rng: random.Random) -> dict[str, Any]:
    """A value for each parameter; "" among the allowed ones: it may be left out, and is where nothing else may be."""
    chosen = {
        k: rng.choice(v) if kind == "any allowed" else next((x for x in v if x != ""), "") for k, v in allowed.items()
    }
    return {k: _plain(v) for k, v in chosen.items() if v != "" or "" not in allowed[k]}


def _plain(value: Any) -> Any:
    """A table's values are lists of allowed ones, too."""
    if isinstance(value, dict):
        return {
            k: _plain(next((x for x in v if x != ""), v[0])) if isinstance(v, list) and v else v
            for k, v in value.items()
        }
    return [_plain(v) for v in value] if isinstance(value, list) else value


def written(calls: Made) -> str:
    return f"[{', '.join(f'{name}({_keywords(given)})' for name, given in calls)}]"


def _keywords(given: dict[str, Any]) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in given.items())
