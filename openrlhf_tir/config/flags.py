"""Turn the command line's dotted flags into overrides for settings.load.

Every setting is a flag of the same dotted name, and there are no others. OpenRLHF's names are refused with the name to
use and with `openrlhf-tir import-openrlhf`, which makes a recipe of a whole command line (foreign_names.py). All
mistakes are reported at once.

This is argparse rather than the command line of pydantic-settings, because of OpenRLHF's way of writing values:
`--actor.eps_clip_low_high 0.2 0.28`, bare booleans, `--no-x`. Values stay text here; pydantic converts them.
"""

from __future__ import annotations

import argparse
import difflib
import re
import tomllib
import types
from collections.abc import Collection, Mapping, Sequence
from datetime import date, time
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

from ..errors import ConfigError, Problem
from . import foreign_names, openrlhf_flags, short_help
from .catalog import ENVS, Setting, all_settings, env_names, known_keys, settings_of_env, settings_with
from .inactive import inactive_settings
from .paths import shown
from .problems import Problems
from .ranks import ranks_of_machine
from .schema import Config
from .settings import attempt, unknown_key

SHORT = {"--seed": "train.seed", "--run-dir": "run_dir", "--resume": "train.resume"}
FIRST = (
    "actor.model_name_or_path",
    "data.prompt_dataset",
    "eval.dataset",
    "env.name",
    "env.file",
    "env.max_calls",
    "reward.name",
    "filter.names",
    "rollout.batch_size",
    "rollout.n_samples_per_prompt",
    "rollout.max_new_tokens",
    "train.max_steps",
    "actor.learning_rate",
    "pipeline.mode",
    "algo.advantage.estimator",
    "run_dir",
    "train.resume",
)
"""The settings that most training runs set: the short help lists them."""


NEGATIVE_NUMBER = re.compile(r"-(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?$|-(inf|infinity|nan)$", re.IGNORECASE)
"""Values that start like a flag. argparse's own pattern has no exponents."""


OF_VERL = re.compile(
    r"\+{0,2}(actor_rollout_ref|algorithm|data|trainer|critic|reward_model|custom_reward_function|ray_kwargs)\.[\w.]+="
)
"""The beginning of an override on a command line of verl."""


KEY_VALUE = "KEY=VALUE"
"""How the help shows the words of a table."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ConfigError, so that every mistake leaves the program the same way."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._negative_number_matcher = NEGATIVE_NUMBER
        self.takes_envs = False
        """True if it has configuration flags. The flags of every environment that the command line names are then added
        before it is read."""
        self._envs: set[str] = set()
        self.config_actions: list[argparse.Action] = []
        """Its configuration flags. The short help lists a few of them."""
        self.first_settings: Mapping[str, str] = {}
        """The flags that the short help lists, and its text for each."""
        self.add_argument(
            "--help-all", action=_HelpAll, nargs=0, help="show every argument with its full description, and exit"
        )

    def parse_known_args(self, args=None, namespace=None):
        words = (word.lstrip("-").removeprefix("no-").partition("=")[0] for word in args or () if word.startswith("--"))
        for name in env_names(words) if self.takes_envs else ():
            if name not in self._envs:
                self._envs.add(name)
                group = self.add_argument_group(f"{ENVS}.{name}")
                for setting in settings_of_env(name):
                    _add(group, setting, None)
        namespace, extra = super().parse_known_args(args, namespace)
        if not hasattr(namespace, "parser"):
            namespace.parser = self  # of the innermost command
        return namespace, extra

    def format_help(self) -> str:
        """Return the help on one screen; `--help-all` has everything."""
        return short_help.short_help(self, self.config_actions, self.first_settings)

    def _get_formatter(self) -> argparse.HelpFormatter:
        """Return a formatter of a screen's width; argparse's own is as wide as the terminal."""
        return self.formatter_class(prog=self.prog, width=short_help.WIDTH)  # type: ignore[call-arg]

    def format_help_all(self) -> str:
        """Return the help with every argument and its default."""
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message[0].upper()}{message[1:]}. See `{self.prog} --help`.", code="usage")


class _HelpAll(argparse.Action):
    """Print the whole help, and exit."""

    def __call__(self, parser, namespace, values, option_string=None):
        print(parser.format_help_all() if isinstance(parser, Parser) else parser.format_help(), end="")
        parser.exit()


class _Set(argparse.Action):
    """Collect a flag's text under its setting's name in `namespace.overrides`."""

    def __call__(self, parser, namespace, values, option_string=None):
        text: Any
        if option_string.startswith("--no-"):
            text = "false"
        elif self.nargs == "*" and values == ["[]"]:  # an empty list as a recipe writes it
            text = []
        elif self.metavar == KEY_VALUE:  # a flag for each option adds to those before it
            before = namespace.overrides.get(self.dest, [])
            text = values if _is_unset(before) or _is_unset(values) else [*before, *values]
        else:
            text = values
        namespace.overrides = {**namespace.overrides, self.dest: text}


class _Compat(argparse.Action):
    """Collect a flag that also takes OpenRLHF's values, such as a schedule's name, in `namespace.compat`.

    `overrides_and_problems` translates it.
    """

    def __call__(self, parser, namespace, values, option_string=None):
        namespace.compat = {**namespace.compat, self.dest: values}


class _Alias(argparse.Action):
    """Collect a flag of OpenRLHF's train_sft under its own name; fine_tuning.config_of translates it."""

    def __call__(self, parser, namespace, values, option_string=None):
        namespace.overrides = {**namespace.overrides, self.dest: values}


def add_config_flags(
    parser: argparse.ArgumentParser,
    recipe: str | None = None,
    *,
    shown: Collection[str] | None = None,
    aliases: Collection[str] = (),
    first: Collection[str] = FIRST,
) -> None:
    """Add `--recipe`, the three short flags, and one flag per setting.

    Args:
        parser: The parser of a command.
        recipe: Default of --recipe.
        shown: Settings that the help lists; all by default. The others are read as well, so that the command can say
            what is wrong with them.
        aliases: Further names that the command understands. The help does not list them.
        first: Settings that the short help lists.
    """
    parser.set_defaults(overrides={}, compat={})
    parser.usage = "%(prog)s [--recipe NAME] [--section.name VALUE ...]"
    run = parser.add_argument_group("run")
    run.add_argument(
        "--recipe",
        default=recipe,
        metavar="NAME_OR_FILE",
        help=f"TOML file, or the name of one in the package; flags win over it [{recipe or 'none'}]",
    )
    settings = {s.name: s for s in all_settings()}
    short = {key: flag for flag, key in SHORT.items()}
    groups = {"run": run}
    for s in settings.values():
        if shown is not None and s.name not in shown:
            _add(parser, s, None, hidden=True)
            continue
        if s.section not in groups:
            groups[s.section] = parser.add_argument_group(s.section, s.section_doc)
        _add(groups[s.section], s, short.get(s.name))
    if shown is None:
        parser.add_argument_group(
            "envs.NAME",
            "one environment of several, [envs.NAME]: --envs.NAME.share, --envs.NAME.input_template, and every field of"
            " env, reward and filter, as --envs.NAME.url, --envs.NAME.reward.name, --envs.NAME.filter.accuracy_range"
            " (docs/environments.md)",
        )
        if isinstance(parser, Parser):
            parser.takes_envs = True
    parser.set_defaults(unknown=())
    if isinstance(parser, Parser):
        parser.config_actions = [a for a in parser._actions if isinstance(a, _Set | _Compat)]
        parser.first_settings = {short.get(name, f"--{name}"): settings[name].short for name in first}
    for name in sorted(set(aliases) - settings.keys()):
        parser.add_argument(
            f"--{name}", action=_Alias, dest=name, nargs="*", help=argparse.SUPPRESS, default=argparse.SUPPRESS
        )


def _add(group, s: Setting, short: str | None, *, hidden: bool = False) -> None:
    kind = _kind(s.info.annotation)
    names = [f"--{s.name}", *([short] if short else [])]
    if s.name == "run_dir":
        names.reverse()
    options: dict[str, Any] = {
        "action": _Set,
        "dest": s.name,
        "default": argparse.SUPPRESS,
        "help": argparse.SUPPRESS if hidden else _help(s),
    }
    if s.name in openrlhf_flags.translated():
        options["action"] = _Compat
    if kind is bool:
        group.add_argument(*names, nargs="?", const="true", metavar="BOOL", **options)
        group.add_argument(f"--no-{s.name}", **{**options, "nargs": 0, "help": argparse.SUPPRESS})
    elif kind is dict:
        group.add_argument(*names, nargs="+", metavar=KEY_VALUE, **options)
    elif kind is tuple:
        group.add_argument(*names, nargs="*" if _is_list(s.info.annotation) else "+", metavar="X", **options)
    else:
        choices = [str(c) for c in get_args(kind)] if get_origin(kind) is Literal else None
        group.add_argument(
            *names,
            metavar="{" + ",".join(choices) + "}" if choices else getattr(kind, "__name__", "VALUE").upper(),
            **options,
        )


def _kind(annotation: Any) -> Any:
    """Return the type of `X | None`, with tuple for every tuple or list, and dict for every table."""
    annotation = _without_none(annotation)
    return {tuple: tuple, list: tuple, dict: dict}.get(get_origin(annotation), annotation)


def _without_none(annotation: Any) -> Any:
    while True:
        if get_origin(annotation) in (Union, types.UnionType):
            annotation = next(a for a in get_args(annotation) if a is not type(None))
        elif get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        else:
            return annotation


def _is_list(annotation: Any) -> bool:
    """Return True for a list, which may be empty; a tuple has a fixed length."""
    return get_origin(_without_none(annotation)) is list


def _help(s: Setting) -> str:
    """Return a setting's help: description, conditions of an effect, and in brackets unit, bounds and default."""
    default = s.info.get_default(call_default_factory=True)
    if isinstance(default, tuple | list):
        default = " ".join(map(str, default)) or "none"
    text = "unset" if default in (None, "", {}) else str(default)
    unit = f" {s.metadata.unit}" if s.metadata.unit and text not in ("unset", "auto", "off") else ""
    sentences = [s.info.description or "", *(f"Only {condition.text}." for condition in s.active_when)]
    return f"{' '.join(sentences)} [{text}{unit}]".replace("%", "%%")


def config_from(args: argparse.Namespace, problems: Problems, *, makes_data: bool = False) -> Config:
    """Return the Config of --recipe and the flags, as far as they are right.

    Args:
        args: The parsed arguments.
        problems: Collects every mistake in them.
        makes_data: True if the command makes model and data by itself.

    Raises:
        ConfigError: The recipe cannot be read at all, so that nothing can be said about the rest.
    """
    problems.add(unknown_flags(args.unknown))
    given = overrides_and_problems(args, problems)
    cfg = attempt(args.recipe, given, problems, ranks_of=ranks_of_machine)
    problems.add(map(str, inactive_settings(cfg, given, makes_data=makes_data)), code="no_effect")
    return cfg


def overrides_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the dotted overrides of parsed arguments. Raises ConfigError, with one line per mistake."""
    problems = Problems()
    problems.add(unknown_flags(args.unknown))
    given = overrides_and_problems(args, problems)
    problems.raise_any()
    return given


def overrides_and_problems(args: argparse.Namespace, problems: Problems) -> dict[str, Any]:
    """Return the dotted overrides of parsed arguments; mistakes are added to `problems`.

    Values stay text, but for what text cannot express: None for 'unset' and 'none', an empty list for
    'none' where names are listed, and integers of a Literal.
    """
    raw = openrlhf_flags.translate(args.compat, args.overrides, problems) | args.overrides
    typed: dict[str, Any] = {}
    for s in settings_with(env_names(raw)):
        if s.name in raw:
            with problems.caught():
                typed[s.name] = _typed(s, raw[s.name])
    return typed


NO = ("none", "None")
UNSET = ("unset", *NO)


def _is_unset(words: Sequence[str]) -> bool:
    """Return True if the words of a flag are one that stands for None."""
    return len(words) == 1 and words[0] in UNSET


def _typed(s: Setting, value: Any) -> Any:
    word = value[0] if isinstance(value, list) and len(value) == 1 else value
    kind = _kind(s.info.annotation)
    if word in NO and kind is tuple and get_args(_without_none(s.info.annotation)) == (str,):
        return []  # no name, where unset may mean some by default
    if word in UNSET and type(None) in get_args(s.info.annotation):
        return None
    if kind is dict and not isinstance(value, dict):
        return dict(_pair(s.name, text) for text in value)
    if get_origin(kind) is Literal:
        return next((choice for choice in get_args(kind) if str(choice) == value), value)
    return value


def _pair(name: str, text: str) -> tuple[str, Any]:
    """Split "c=3" into ("c", 3). The value is read as TOML, or is plain text if it is a date or not TOML."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ConfigError(
            f"--{name} {text!r} is not of the form KEY=VALUE. Example: --{name} c=3 variant=v1.",
            code="invalid_value",
            setting=name,
        )
    try:
        read = tomllib.loads(f"v = {value}")["v"]
    except (ValueError, RecursionError):  # not TOML, or a number or a nesting that is too large for Python's reader
        return key, value
    return key, value if isinstance(read, date | time) else read


def check_unknown(extra: Sequence[str], parser: argparse.ArgumentParser | None = None) -> None:
    """Raise ConfigError for arguments that argparse did not recognise.

    Args:
        extra: The arguments.
        parser: The parser of a command without configuration flags; None for one that has them.
    """
    problems = unknown_flags(extra) if parser is None else _unknown_to(parser, extra)
    if problems:
        raise ConfigError("\n".join(problem.message for problem in problems), problems=problems)


def _unknown_to(parser: argparse.ArgumentParser, extra: Sequence[str]) -> list[Problem]:
    """Return a mistake for each flag that a command does not have, or for the first word if there is no such flag."""
    flags = [word.partition("=")[0] for word in extra if word.startswith("-") and not NEGATIVE_NUMBER.match(word)]
    lines = []
    for flag in flags:
        near = difflib.get_close_matches(flag, parser._option_string_actions, n=1, cutoff=0.6)
        hint = f"Did you mean {near[0]}?" if near else f"See `{parser.prog} --help`."
        lines.append(f"`{parser.prog}` has no flag {shown(flag)}. {hint}")
    if extra and not lines:
        lines.append(f"`{parser.prog}` does not take {shown(extra[0])}. See `{parser.prog} --help`.")
    return [Problem(line, "usage") for line in lines]


def unknown_flags(extra: Sequence[str]) -> list[Problem]:
    """Return a mistake for each flag that argparse did not recognise, and for each word that belongs to none.

    A word after an unknown flag is its value.
    """
    mistakes: list[Problem] = []
    foreign_flags: list[tuple[str, list[str]]] = []
    values: list[str] | None = None  # those of the last unknown flag; None before the first one
    if overrides_of_verl := [word for word in extra if OF_VERL.match(word)]:
        text = (
            f"{shown(overrides_of_verl[0])} is an override of verl's. `openrlhf-tir import-verl -- OVERRIDES...`, or"
            " import-verl SCRIPT.sh, makes a recipe of its command line."
        )
        mistakes.append(Problem(text, "foreign_flag", overrides_of_verl[0].lstrip("+").partition("=")[0]))
        extra = [word for word in extra if word not in overrides_of_verl]
    for word in extra:
        if NEGATIVE_NUMBER.match(word) or not word.startswith("-"):
            if values is None:
                text = f"Unexpected argument {shown(word)}. Options are written --section.name value."
                mistakes.append(Problem(text, "usage"))
            else:
                values.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        values = [value] if equals else []
        if foreign_names.is_foreign(name):
            foreign_flags.append((name, values))
        else:
            known = {*known_keys(env_names([name])), *(f.removeprefix("--") for f in SHORT)}
            mistakes.extend(unknown_key(name, sorted(known), "on the command line").problems)
    return [*(Problem(line, "foreign_flag") for line in foreign_names.answers(foreign_flags)), *mistakes]
