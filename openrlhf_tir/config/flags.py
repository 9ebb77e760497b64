"""Flags: the command line's dotted options -> overrides for settings.load.

Every field of Config is a flag of the same dotted name; every flag of OpenRLHF's train_ppo_ray is understood as openrlhf_flags says.
argparse rather than pydantic-settings' own command line, for OpenRLHF's way of writing values: `--actor.eps_clip_low_high 0.2 0.28`,
bare booleans, `--no-x`. Values stay text here: pydantic types them.
"""

from __future__ import annotations

import argparse
import types
from collections.abc import Sequence
from typing import Any, Literal, Union, get_args, get_origin

from ..errors import ConfigError
from . import openrlhf_flags
from .settings import Setting, known_keys, unknown_key, walk

SHORT = {"--seed": "train.seed", "--run-dir": "run_dir", "--resume": "train.resume"}


class Parser(argparse.ArgumentParser):
    """argparse that raises ConfigError, so that every mistake leaves the program the same way."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise ConfigError(f"{message[0].upper()}{message[1:]}. See `{self.prog} --help`.")


class _Set(argparse.Action):
    """Collect a flag's text under its config key in `namespace.overrides`."""

    def __call__(self, parser, namespace, values, option_string=None):
        text = "false" if option_string.startswith("--no-") else values
        namespace.overrides = {**namespace.overrides, self.dest: text}


class _Compat(argparse.Action):
    """Remember a flag of OpenRLHF; `overrides_of` translates all of them together."""

    def __call__(self, parser, namespace, values, option_string=None):
        namespace.compat = {**namespace.compat, self.dest: values}


def add_config_flags(parser: argparse.ArgumentParser, recipe: str | None = None) -> None:
    """`--recipe` (default: `recipe`), the three short flags, one flag per config field, and (hidden) OpenRLHF's names."""
    parser.set_defaults(overrides={}, compat={})
    parser.usage = "%(prog)s [--recipe NAME_OR_FILE] [--section.name VALUE ...]"
    run = parser.add_argument_group("run")
    run.add_argument(
        "--recipe",
        default=recipe,
        metavar="NAME_OR_FILE",
        help=f"TOML file, or the name of one in the package; flags win over it [{recipe or 'none'}]",
    )
    settings = {s.name: s for s in walk()}
    short = {key: flag for flag, key in SHORT.items()}
    groups = {"run": run}
    for s in settings.values():
        if s.section not in groups:
            groups[s.section] = parser.add_argument_group(s.section, s.section_doc)
        _add(groups[s.section], s, short.get(s.name))
    for name in openrlhf_flags.translated() - settings.keys():
        parser.add_argument(f"--{name}", action=_Compat, dest=name, nargs="*", help=argparse.SUPPRESS, default=argparse.SUPPRESS)


def _add(group, s: Setting, short: str | None) -> None:
    kind = _kind(s.info.annotation)
    names = [f"--{s.name}", *([short] if short else [])]
    if s.name == "run_dir":
        names.reverse()
    options: dict[str, Any] = {"action": _Set, "dest": s.name, "default": argparse.SUPPRESS, "help": _help(s)}
    if s.name in openrlhf_flags.translated():
        options["action"] = _Compat
    if kind is bool:
        group.add_argument(*names, nargs="?", const="true", metavar="BOOL", **options)
        group.add_argument(f"--no-{s.name}", **{**options, "nargs": 0, "help": argparse.SUPPRESS})
    elif kind is tuple:
        group.add_argument(*names, nargs="+", metavar="X", **options)
    else:
        choices = [str(c) for c in get_args(kind)] if get_origin(kind) is Literal else None
        group.add_argument(*names, metavar="{" + ",".join(choices) + "}" if choices else getattr(kind, "__name__", "VALUE").upper(), **options)


def _kind(annotation: Any) -> Any:
    """The type behind `X | None`; every tuple or list counts as tuple."""
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(a for a in get_args(annotation) if a is not type(None))
    return tuple if get_origin(annotation) in (tuple, list) else annotation


def _help(s: Setting) -> str:
    default = s.info.get_default(call_default_factory=True)
    if isinstance(default, tuple):
        default = " ".join(map(str, default))
    said = "unset" if default in (None, "") else str(default)
    return f"{s.info.description or s.name.rsplit('.', 1)[-1].replace('_', ' ')} [{said}]".replace("%", "%%")


def overrides_of(args: argparse.Namespace) -> dict[str, Any]:
    """The dotted overrides behind parsed arguments, typed as far as text cannot say it: 'none' unsets, integers in a Literal.

    Raises ConfigError for a flag of OpenRLHF that has no meaning here, with what to use instead.
    """
    raw = {**openrlhf_flags.translate(args.compat), **args.overrides}
    return {s.name: _typed(s, raw[s.name]) for s in walk() if s.name in raw}


def _typed(s: Setting, value: Any) -> Any:
    optional = type(None) in get_args(s.info.annotation)
    if optional and value in ("none", "None", ["none"], ["None"]):
        return None
    kind = _kind(s.info.annotation)
    if get_origin(kind) is Literal:
        return next((choice for choice in get_args(kind) if str(choice) == value), value)
    return value


def check_unknown(extra: Sequence[str]) -> None:
    """Raise for what argparse did not recognise."""
    if not extra:
        return
    flag = extra[0]
    if not flag.startswith("--"):
        raise ConfigError(f"Unexpected argument {flag!r}. Options are written --section.name value.")
    name = flag.removeprefix("--").partition("=")[0]
    raise unknown_key(name, sorted({*known_keys(), *openrlhf_flags.RULES, *(f.removeprefix("--") for f in SHORT)}), "on the command line")
