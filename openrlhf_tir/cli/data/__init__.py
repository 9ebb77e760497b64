"""The `data` commands, which prepare data before a run. None needs a GPU; only `rewrite` needs a model, behind a
server."""

from __future__ import annotations

import argparse
from types import ModuleType

from . import check, convert, decontaminate, rewrite, select

SUBCOMMANDS: dict[str, tuple[ModuleType, str]] = {
    "check": (check, "read every row as a run would, and report file, line, field and type of every mistake"),
    "convert": (convert, "write rows of one schema in another; xLAM, Hammer and ToolACE as Tool-N1's"),
    "decontaminate": (decontaminate, "leave out problems that share n-grams with an evaluation set"),
    "rewrite": (rewrite, "have a model rewrite worked solutions as demonstrations with code (ReTool's cold start)"),
    "select": (select, "keep problems by how often they were solved (pass rate), or by their learning impact (LIMR)"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    subparsers = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, (module, summary) in SUBCOMMANDS.items():
        sub = subparsers.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(sub)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from ...data.rows import SETTING
    from ...errors import ConfigError

    try:
        code: int = SUBCOMMANDS[args.what][0].run(args)
    except ConfigError as error:
        raise error.reworded(lambda text: text.replace(SETTING, "DATA")) from None
    return code
