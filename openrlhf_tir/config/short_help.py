"""Short help: a command's help on one screen, its arguments and its examples. `--help-all` has all of it.

openrlhf-tir train --help       the command's own arguments and the settings that most runs set
openrlhf-tir train --help-all   every setting, with its default"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence

LINES = 30
"""Lines of a screen."""
WIDTH = 79
NAME_WIDTH = 30
"""Columns of an argument's name."""
DETAIL_INDENT = 5
"""Columns before a line of an epilog that only explains the line above it."""
HEADS = (":", "examples", "example")
"""Ends of a line that is the head of a list."""
HELP = {"-h", "--help", "--help-all"}
COMMAND = "  openrlhf-tir "
"""What a line of an epilog that is a command begins with."""
Item = tuple[str, str]
"""An argument's name and what is said of it."""


def short_help(
    parser: argparse.ArgumentParser, config: Collection[argparse.Action], settings: Mapping[str, str]
) -> str:
    """Return the help of a parser on one screen: as much of its examples and of each argument as there is room for.

    Args:
        config: Actions that are configuration flags; the rest are the command's own.
        settings: Flags of these that are listed, and the text of each.
    """
    own = [a for a in parser._actions if a not in config and _is_listed(a)]
    words = [item for a in parser._actions if not a.option_strings for item in _of_word(a)]
    items = words + [_of_flag(parser, action) for action in own]
    shown = [*settings.items()]
    ways = [(items, most, examples) for most, examples in _ways(parser)]
    groups = _optional_groups(parser) if not config else {}
    if groups:
        # The names alone of the arguments of a group say more than half a sentence on each.
        in_group = {id(action) for actions in groups.values() for action in actions}
        fewer = words + [_of_flag(parser, action) for action in own if id(action) not in in_group]
        for title, actions in groups.items():
            [head] = cut(title, NAME_WIDTH, 1)
            fewer.append((head, ", ".join(_of_flag(parser, action)[0].split()[0] for action in actions)))
        whole = [way for way in ways if way[1] > 1]
        ways = [*whole, *((fewer, most, examples) for most, examples in _ways(parser)), *ways[len(whole) :]]
    for listed, most, examples in ways:
        lines = _lines(parser, listed, shown, most, examples, has_config=bool(config))
        if len(lines) <= LINES:
            break
    return "\n".join(lines) + "\n"


def _optional_groups(parser: argparse.ArgumentParser) -> dict[str, list[argparse.Action]]:
    """Return title -> arguments of the parser's own groups, without those that must be given."""
    groups = {
        str(g.title): [a for a in g._group_actions if _is_listed(a) and not a.required]
        for g in parser._action_groups[2:]
    }
    return {title: actions for title, actions in groups.items() if actions}


def _is_listed(action: argparse.Action) -> bool:
    """Return True for a command's own flags. How to get help is said once, at the end, and not in the list."""
    return (
        bool(action.option_strings) and action.help != argparse.SUPPRESS and not HELP.issuperset(action.option_strings)
    )


def _ways(parser: argparse.ArgumentParser) -> Iterator[tuple[int, list[str]]]:
    """Yield the most lines for an argument, and lines of examples, the fullest first: explanations go before examples,
    examples before the arguments are cut to one line each, and the first example last of all."""
    epilog = (parser.epilog or "").replace("%%", "%").splitlines()
    without_details = [line for line in epilog if len(line) - len(line.lstrip()) < DETAIL_INDENT]
    commands = [line for line in epilog if line.startswith(COMMAND)]
    fewer = [["examples:", *commands[:n]] for n in range(len(commands), 0, -1)]
    kinds = [[part for line in paragraphs(kind) for part in folded(line)] for kind in (epilog, without_details, *fewer)]
    yield from ((most, examples) for examples in kinds for most in (4, 3, 2))
    yield from ((1, examples) for examples in [*kinds, []])


def paragraphs(lines: Sequence[str]) -> list[str]:
    """Return the lines of an epilog with those of one paragraph, which are not indented, joined to one."""
    out: list[str] = []
    for line in lines:
        is_prose = bool(line) and not line[0].isspace() and not line.endswith(":")
        if is_prose and out and out[-1] and not out[-1][0].isspace() and not out[-1].endswith(HEADS):
            out[-1] = f"{out[-1]} {line}"
        else:
            out.append(line)
    return out


def folded(line: str) -> list[str]:
    """Return a line of an epilog in lines of a screen's width; a command is continued with a backslash.

    What an example says behind its command, after three spaces, comes first as a line of its own where both do not fit.
    """
    if len(line) <= WIDTH:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    if not line.startswith(COMMAND):
        return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    command, _, remark = line.strip().partition("   ")
    remarks = [f"{indent}# {remark.strip()}"] if remark else []
    wrapped = textwrap.wrap(command, WIDTH - 2 - len(indent), break_on_hyphens=False, break_long_words=False)
    first, *more = wrapped
    lines = [f"{indent}{first}", *(f"{indent}    {part}" for part in more)]
    return [*remarks, *(f"{part} \\" for part in lines[:-1]), lines[-1]]


def _lines(
    parser: argparse.ArgumentParser,
    items: list[Item],
    shown: list[Item],
    most: int,
    examples: list[str],
    *,
    has_config: bool,
) -> list[str]:
    """Return the lines of the help with at most `most` for an argument."""
    usage = f"usage: {_usage(parser)}".splitlines()
    lines = [*(part for line in usage for part in textwrap.wrap(line, WIDTH, subsequent_indent=" " * 8)), ""]
    if parser.description:
        lines += [*textwrap.wrap(parser.description, WIDTH), ""]
    lines += _table(items, most)
    if has_config:
        head = "settings, as --section.name VALUE (all: --help-all, or docs/settings.md)"
        lines += ["", f"{head}{':' * bool(shown)}", *_table(shown, most)]
    if examples:
        lines += ["", *examples]
    if not has_config:
        lines += ["", f"`{parser.prog} --help-all` says more of each."]
    return lines


def _usage(parser: argparse.ArgumentParser) -> str:
    usage = (parser.usage or "").replace("%(prog)s", parser.prog)
    if usage:
        return usage
    words = [a.metavar or a.dest for a in parser._actions if not a.option_strings and a.help != argparse.SUPPRESS]
    needed = [_of_flag(parser, a)[0] for a in parser._actions if a.option_strings and a.required]
    return " ".join([parser.prog, "[options]", *(w if isinstance(w, str) else " ".join(w) for w in words), *needed])


def _of_word(action: argparse.Action) -> list[Item]:
    """Return a positional argument, or each of the commands that it stands for."""
    commands = [*action._get_subactions()] if hasattr(action, "_get_subactions") else []
    return [(sub.dest, sub.help or "") for sub in commands] or [(str(action.metavar or action.dest), action.help or "")]


def _of_flag(parser: argparse.ArgumentParser, action: argparse.Action) -> Item:
    said = parser._get_formatter()._expand_help(action) if action.help else ""
    name = min(action.option_strings, key=len) if len(action.option_strings[0]) > 2 else "-h, --help"
    metavar = action.metavar if isinstance(action.metavar, str) else None
    if action.nargs == 0 or metavar is None or len(name) + len(metavar) + 1 > NAME_WIDTH:
        return name, said
    return f"{name} {metavar}", said


def _table(items: list[Item], most: int) -> list[str]:
    width = min(NAME_WIDTH, max((len(name) for name, _ in items), default=0))
    lines = []
    for name, text in items:
        said = cut(" ".join(text.replace("%%", "%").split()), WIDTH - width - 4, most)
        lines += [f"  {head:{width}}  {part}".rstrip() for head, part in zip([name, *[""] * most], said, strict=False)]
    return lines


def cut(text: str, room: int, most: int) -> list[str]:
    """Return a text in at most `most` lines. What does not fit is left out from the last clause or word on."""
    lines = textwrap.wrap(text, room) or [""]
    if len(lines) <= most:
        return lines
    kept = " ".join(lines[:most])
    ends = [m.start() for m in re.finditer(r"[;:,(]| -> ", kept)]
    if ends and ends[-1] > len(kept) * 0.6:
        return textwrap.wrap(kept[: ends[-1]].rstrip(), room)
    return textwrap.wrap(f"{kept[: room * most - 4].rsplit(' ', 1)[0]} ...", room)[:most]
