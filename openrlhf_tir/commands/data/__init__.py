"""data: what is done with data before a run. None needs a GPU, and only `rewrite` a model, behind a server."""

from __future__ import annotations

import argparse
from types import ModuleType

from . import check, convert, decontaminate, rewrite, select

WHAT: dict[str, tuple[ModuleType, str]] = {
    "check": (check, "read every row as a run would: what is there, and file, line, field and type of what is wrong"),
    "convert": (convert, "write rows of one schema in another; xLAM, Hammer and ToolACE as Tool-N1's"),
    "decontaminate": (decontaminate, "leave out problems that share n-grams with an evaluation set"),
    "rewrite": (rewrite, "make demonstrations with code of worked solutions, by a model, as ReTool's cold start"),
    "select": (select, "keep problems by how often they were solved (pass rate), or by their learning impact (LIMR)"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    subparsers = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, (module, summary) in WHAT.items():
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
    from ...data.rows import SETTING
    from ...errors import ConfigError

    try:
        code: int = WHAT[args.what][0].run(args)
    except ConfigError as e:
        raise type(e)(str(e).replace(SETTING, "DATA")) from None
    return code
