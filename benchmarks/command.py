"""The command line of every benchmark: its parser, the files that it is to write, and how a signal ends it."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path


def command_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows a module's docstring as it is written, and is named as the module is started."""
    spec = sys.modules["__main__"].__spec__
    program = None if spec is None else f"python -m {spec.name.removesuffix('.__main__')}"
    return argparse.ArgumentParser(
        prog=program, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def output_file(text: str) -> Path:
    """Return the path of a file that is written at the end of a run: a type of argparse.

    It is tried out before the run, so that no figures are lost in the end: its directory is made, and a directory of
    its name is refused.
    """
    path = Path(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be written ({error.strerror}). Give another file.") from None
    return path


def end_as_at_ctrl_c() -> None:
    """Let SIGTERM raise KeyboardInterrupt, as Ctrl-C does, so that what a benchmark has started or written is cleared
    away."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
