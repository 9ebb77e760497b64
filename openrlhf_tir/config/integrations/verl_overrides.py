"""Hydra overrides of verl's command lines: words -> values by dotted name.

    algorithm.adv_estimator=grpo   +data.x=1   ++data.y=null   ~trainer.logger   data.train_files="['a','b']"

Values are typed as Hydra types them: numbers, true and false, null, lists and objects; everything else is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_OVERRIDE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<name>[A-Za-z_][\w/@-]*(?:\.[\w@-]+)*)(?:=(?P<value>.*))?", re.DOTALL)
_INTEGER = re.compile(r"[+-]?\d[\d_]*")
_FLOAT = re.compile(r"[+-]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][+-]?\d+)?")
WORDS = {"true": True, "false": False, "null": None, "none": None}
"""What Hydra reads without quotes, in any case; `None` is what Python users write for null."""
OF_HYDRA = ("--config-path", "--config-name", "--config-dir", "-cp", "-cn", "-cd")


@dataclass
class Overrides:
    """The overrides of one command line."""

    values: dict[str, Any] = field(default_factory=dict)
    """Dotted name -> value; a later one wins, as in Hydra."""
    removed: list[str] = field(default_factory=list)
    """Names behind `~`."""
    config: dict[str, str] = field(default_factory=dict)
    """Hydra's own flags: config-path, config-name."""
    strange: list[str] = field(default_factory=list)
    """Words that are no override."""


def read_overrides(words: Sequence[str]) -> Overrides:
    """Return the overrides in the words behind a program's name."""
    found = Overrides()
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if flag in OF_HYDRA:
            value = value if equals else next(rest, "")
            long = {"-cp": "--config-path", "-cn": "--config-name", "-cd": "--config-dir"}.get(flag, flag)
            found.config[long.removeprefix("--")] = value
            continue
        match = _OVERRIDE.fullmatch(word)
        if match is None or (match["value"] is None and match["sign"] != "~"):
            if word.strip():
                found.strange.append(word)
        elif match["sign"] == "~":
            found.removed.append(match["name"])
        else:
            value = value_of(match["value"])
            if isinstance(value, dict) and value:
                found.values.update(flat(value, f"{match['name']}."))
            else:
                found.values[match["name"]] = value
    return found


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested table by dotted names; lists and empty tables are values."""
    out: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            out |= flat(value, f"{prefix}{name}.")
        else:
            out[f"{prefix}{name}"] = value
    return out


def value_of(text: str) -> Any:
    """Return what Hydra makes of a value's text."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        inner = text[1:-1]
        # Scripts quote lists for the shell and again: '["console","wandb"]' is a list in all of verl's examples.
        return value_of(inner) if inner[:1] in "[{" else inner
    if text.startswith("[") and text.endswith("]"):
        return [value_of(part) for part in _parts(text[1:-1])]
    if text.startswith("{") and text.endswith("}"):
        return _table(text[1:-1])
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _table(text: str) -> dict[str, Any]:
    pairs = (part.partition(":") for part in _parts(text))
    return {str(value_of(name)): value_of(value) for name, _, value in pairs}


def _parts(text: str) -> Iterator[str]:
    """The elements between commas that are in no quotes and no brackets."""
    depth, quote, start = 0, "", 0
    for i, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "[{(":
            depth += 1
        elif sign in ")}]":
            depth -= 1
        elif sign == "," and not depth:
            yield text[start:i]
            start = i + 1
    if text[start:].strip():
        yield text[start:]
