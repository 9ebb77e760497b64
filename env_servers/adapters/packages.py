"""Import the packages of other projects when an adapter starts, and say what to install if one is missing."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType


def required(module: str, extra: str, command: str = "") -> ModuleType:
    """Import a module. Exits with what to install if it, or something that it imports, is missing.

    Args:
        module: Name of the module.
        extra: The extra of this project that installs it.
        command: Command that installs it, instead of the extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        package = module.partition(".")[0]
        if e.name == package:
            fact = "is not installed here"
        else:
            fact = f"cannot be imported here, since {e.name!r} is not installed"
        remedy = command or f"pip install '.[{extra}]', in its checkout"
        sys.exit(f"The package {package!r} {fact}. Install it beside this project: {remedy}.")
