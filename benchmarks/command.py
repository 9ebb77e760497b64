"""The command-line parser of every benchmark."""

from __future__ import annotations

import argparse
import sys


def command_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows a module's docstring as it is written, and is named as the module is started."""
    spec = sys.modules["__main__"].__spec__
    program = None if spec is None else f"python -m {spec.name.removesuffix('.__main__')}"
    return argparse.ArgumentParser(
        prog=program, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
