"""The packages of others: imported when an adapter is started, and a sentence where one is absent."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType


def required(module: str, extra: str, command: str = "") -> ModuleType:
    """`import module`. Exits with what to install when it, or something that it needs, is not there. `command`: in
    place of the extra's."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        lacks = (
            "is not installed here"
            if e.name == module.partition(".")[0]
            else f"cannot be imported here, since {e.name!r} is not installed"
        )
        how = command or f"pip install '.[{extra}]', in its checkout"
        sys.exit(f"The package {module.partition('.')[0]!r} {lacks}. Install it beside this project: {how}.")
