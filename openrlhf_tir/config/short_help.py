"""Short help: a command's help on one screen, one line for each argument. `--help-all` has all of it.

openrlhf-tir train --help       the command's own arguments and the settings that most runs set
openrlhf-tir train --help-all   every setting, with its default"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Collection

LINES = 40
"""A screen."""
WIDTH = 79
NAME_WIDTH = 30
"""Columns of an argument's name."""
CONFIG = {
    "--actor.model_name_or_path": "the model: a directory, or a name on the hub",
    "--data.prompt_dataset": "the problems: a file, a directory, or a name on the hub",
    "--eval.dataset": "held-out problems",
    "--env.name": "the environment; `openrlhf-tir envs` lists them",
    "--env.file": "an environment of your own: path/file.py:Class",
    "--env.max_calls": "calls that a response may make; 0: no tool",
    "--reward.name": "the reward; `openrlhf-tir rewards` lists them",
    "--filter.names": "which groups are trained",
    "--rollout.batch_size": "prompts per batch",
    "--rollout.n_samples_per_prompt": "responses to each",
    "--rollout.max_new_tokens": "tokens of a response",
    "--train.max_steps": "learner updates",
    "--actor.learning_rate": "the policy's learning rate",
    "--pipeline.mode": "how rollout and training overlap",
    "--algo.advantage.estimator": "how rewards become advantages",
}
"""The settings that the short help of `train` names, and what it says of them."""
ROOM_FOR_CONFIG = 10
"""A command with more arguments of its own than this names none of them."""


Item = tuple[str, str]
"""An argument's name and what is said of it."""


def short_help(parser: argparse.ArgumentParser, config: Collection[argparse.Action]) -> str:
    """Return the help of a parser on one screen: each argument in as many lines as there is room for.

    Args:
        config: Actions that are configuration flags; the rest are the command's own.
    """
    own = [a for a in parser._actions if a not in config and a.help != argparse.SUPPRESS and a.option_strings]
    words = [a for a in parser._actions if not a.option_strings]
    items = [item for action in words for item in _of_word(action)] + [_of_flag(action) for action in own]
    shown: list[Item] = []
    if config and len(own) + len(words) <= ROOM_FOR_CONFIG:
        names = {option for action in config for option in action.option_strings}
        shown = [item for item in CONFIG.items() if item[0] in names]
    for most in (4, 3, 2, 1):
        lines = _lines(parser, items, shown, most, has_config=bool(config))
        if len(lines) <= LINES:
            break
    return "\n".join(lines) + "\n"


def _lines(
    parser: argparse.ArgumentParser, items: list[Item], shown: list[Item], most: int, *, has_config: bool
) -> list[str]:
    """Return the lines of the help with at most `most` for an argument."""
    lines = [f"usage: {_usage(parser)}", ""]
    if parser.description:
        lines += [*textwrap.wrap(parser.description, WIDTH), ""]
    lines += _table(items, most)
    if has_config:
        lines += ["", "settings, as --section.name VALUE (docs/settings.md, or --help-all, has all):"]
        lines += _table(shown, most)
    else:
        lines += ["", f"`{parser.prog} --help-all` says more of each."]
    return lines


def _usage(parser: argparse.ArgumentParser) -> str:
    usage = (parser.usage or "").replace("%(prog)s", parser.prog)
    if usage:
        return usage
    words = [a.metavar or a.dest for a in parser._actions if not a.option_strings and a.help != argparse.SUPPRESS]
    return " ".join([parser.prog, "[options]", *(w if isinstance(w, str) else " ".join(w) for w in words)])


def _of_word(action: argparse.Action) -> list[Item]:
    """Return a positional argument, or each of the commands that it stands for."""
    commands = [*action._get_subactions()] if hasattr(action, "_get_subactions") else []
    return [(sub.dest, sub.help or "") for sub in commands] or [(str(action.metavar or action.dest), action.help or "")]


def _of_flag(action: argparse.Action) -> Item:
    name = min(action.option_strings, key=len) if len(action.option_strings[0]) > 2 else "-h, --help"
    metavar = action.metavar if isinstance(action.metavar, str) else None
    if action.nargs == 0 or metavar is None or len(name) + len(metavar) + 1 > NAME_WIDTH:
        return name, action.help or ""
    return f"{name} {metavar}", action.help or ""


def _table(items: list[Item], most: int) -> list[str]:
    width = min(NAME_WIDTH, max((len(name) for name, _ in items), default=0))
    lines = []
    for name, text in items:
        said = _cut(" ".join(text.replace("%%", "%").split()), WIDTH - width - 4, most)
        lines += [f"  {head:{width}}  {part}".rstrip() for head, part in zip([name, *[""] * most], said, strict=False)]
    return lines


def _cut(text: str, room: int, most: int) -> list[str]:
    """Return a text in at most `most` lines. What does not fit is left out from the last clause or word on."""
    lines = textwrap.wrap(text, room) or [""]
    if len(lines) <= most:
        return lines
    kept = " ".join(lines[:most])
    ends = [m.start() for m in re.finditer(r"[;:,(]| -> ", kept)]
    if ends and ends[-1] > len(kept) * 0.6:
        return textwrap.wrap(kept[: ends[-1]].rstrip(), room)
    return textwrap.wrap(f"{kept[: room * most - 4].rsplit(' ', 1)[0]} ...", room)[:most]
