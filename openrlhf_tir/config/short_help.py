"""Short help: a command's help on one screen, its arguments and its examples. `--help-all` has all of it.

openrlhf-tir train --help       the command's own arguments and the settings that most runs set
openrlhf-tir train --help-all   every setting, with its default"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping

LINES = 40
"""A screen."""
WIDTH = 79
NAME_WIDTH = 30
"""Columns of an argument's name."""
DETAIL_INDENT = 5
"""Columns before a line of an epilog that only explains the line above it."""
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
OF_FINE_TUNING = {
    "--actor.model_name_or_path": "the model: a directory, or a name on the hub",
    "--sft.dataset": "rows of messages, prompt and segments, prompt and response, or text",
    "--sft.eval_dataset": "held-out rows",
    "--sft.mask_blocks": "blocks that a tool wrote: read, not learned",
    "--sft.batch_size": "rows per update",
    "--sft.max_len": "tokens of a row",
    "--sft.max_epochs": "passes over the rows",
    "--sft.learning_rate": "the learning rate",
}
"""The same of `sft`."""
ROOM_FOR_CONFIG = 10
"""A command with more arguments of its own than this names none of them."""


Item = tuple[str, str]
"""An argument's name and what is said of it."""


def short_help(
    parser: argparse.ArgumentParser, config: Collection[argparse.Action], settings: Mapping[str, str] = CONFIG
) -> str:
    """Return the help of a parser on one screen: as much of its examples and of each argument as there is room for.

    Args:
        config: Actions that are configuration flags; the rest are the command's own.
        settings: Flags of these that are named, and what is said of each.
    """
    own = [a for a in parser._actions if a not in config and a.help != argparse.SUPPRESS and a.option_strings]
    words = [a for a in parser._actions if not a.option_strings]
    items = [item for action in words for item in _of_word(action)] + [_of_flag(parser, action) for action in own]
    shown: list[Item] = []
    if config and len(own) + len(words) <= ROOM_FOR_CONFIG:
        names = {option for action in config if action.help != argparse.SUPPRESS for option in action.option_strings}
        shown = [item for item in settings.items() if item[0] in names]
    for most, examples in _ways(parser):
        lines = _lines(parser, items, shown, most, examples, has_config=bool(config))
        if len(lines) <= LINES:
            break
    return "\n".join(lines) + "\n"


def _ways(parser: argparse.ArgumentParser) -> Iterator[tuple[int, list[str]]]:
    """Yield the most lines for an argument, and lines of examples, the fullest first: explanations go before examples,
    examples before the arguments are cut to one line each, and the first example last of all."""
    epilog = (parser.epilog or "").replace("%%", "%").splitlines()
    without_details = [line for line in epilog if len(line) - len(line.lstrip()) < DETAIL_INDENT]
    commands = [line for line in epilog if line.startswith("  openrlhf-tir ")]
    fewer = [["examples:", *commands[:n]] for n in range(len(commands), 0, -1)]
    kinds = [epilog, without_details, *fewer]
    yield from ((most, examples) for examples in kinds for most in (4, 3, 2))
    yield from ((1, examples) for examples in [*kinds, []])


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
    lines = [f"usage: {_usage(parser)}", ""]
    if parser.description:
        lines += [*textwrap.wrap(parser.description, WIDTH), ""]
    lines += _table(items, most)
    if has_config:
        lines += ["", "settings, as --section.name VALUE (docs/settings.md, or --help-all, has all):"]
        lines += _table(shown, most)
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
