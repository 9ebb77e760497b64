"""Read settings: a recipe file and overrides become a Config.

    recipe.toml -> (extends ...) -> nested table -+
                                                  +-> Config, or ConfigError with one line per mistake
    flags {"actor.l2": "0.01"} -------------------+

Of several values a flag's counts, then the recipe's, then that of the recipe that it `extends`, then the default
(recipe_join.py joins their tables; environments.py says what an environment takes from the common sections). pydantic
checks the values; this module finds files, names the nearest known key, and turns pydantic's report into fact, value
and remedy. schema.py has the Config itself, setting.py what is declared of a setting.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import date, time
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import ValidationError

from ..errors import ConfigError, Problem
from . import own_files, recipe_paths, rules
from .catalog import ENVS, env_names, known_keys, settings_with
from .former_settings import as_today, without_removed
from .paths import local_path, query_path, shown
from .problems import Problems, settings_in
from .recipe_join import join_recipes
from .removed_settings import remedy
from .schema import WITHOUT_RULES, Config
from .sections.envs import NAME
from .toml_file import UNSET, dump, read_toml

RECIPES = Path(__file__).parent / "recipes"
COMMAND_LINE_ONLY = ("train.overwrite",)
"""Settings that delete. Their value in a recipe does not count, since a recipe is repeated and extended by people who
did not ask for that."""
RESET_BY_MODE = ("max_staleness", "depth", "push_every", "fill_batches")
"""Settings of [pipeline] that a recipe sets for its own pipeline.mode: a flag with another mode resets them."""
MAX_EXTENDS = 32
"""Most recipes in one chain of `extends`."""
FOREIGN_NAMES = {"reward.function": "reward.name", "reward.functions": "reward.weights"}
"""What other trainers call a setting -> the setting."""


def load(recipe: str | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Return the Config of a recipe and overrides.

    Args:
        recipe: Name or path of a recipe. None: the defaults.
        overrides: Dotted name -> value. They win over the recipe. A pipeline.mode among them resets what the recipe
            sets for another mode.

    Raises:
        ConfigError: With one line per mistake: an unknown recipe or key, a value of the wrong type, or values that
            contradict one another.
    """
    problems = Problems()
    cfg = attempt(recipe, overrides or {}, problems)
    problems.raise_any()
    return cfg


def attempt(
    recipe: str | None,
    overrides: Mapping[str, Any],
    problems: Problems,
    rules_of: Callable[[Config], Iterable[Problem]] = rules.violations,
    *,
    ranks_of: Callable[[Config], Config] | None = None,
) -> Config:
    """Return the Config as far as it is right; every mistake is added to `problems` and replaced by the default.

    Args:
        recipe: As for `load`.
        overrides: As for `load`.
        problems: Collects the mistakes.
        rules_of: The rules between settings. By default those of a training run.
        ranks_of: Fills in the number of learner ranks if it is not set (ranks.py).

    Raises:
        ConfigError: The recipe is not a file or not TOML, so that nothing can be said about the rest.
    """
    known = known_keys(env_names(overrides))
    for key in overrides:
        if key not in known:
            problems.add(unknown_key(key, known, "among the overrides"))
    override_table = nest({key: value for key, value in overrides.items() if key in known})
    # A file of user code that an override names is relative to the current directory, in a recipe to the recipe's.
    override_table = own_files.renamed(override_table, own_files.absolute(Path()))
    recipe_table = {} if recipe is None else _without_command_line_only(read_recipe(recipe, problems))
    recipe_table = _without_other_modes(recipe_table, overrides.get("pipeline.mode"))
    table = join_recipes(recipe_table, override_table)
    _remove_impossible_values(table, problems)
    cfg = _validated(table, problems)
    if ranks_of:
        cfg = ranks_of(cfg)
    problems.add(rules_of(cfg))
    return cfg


def load_former(path: Path) -> Config:
    """Return the configuration of a run's config.toml, also of a run that an earlier version made.

    Settings that moved since are where they are now, and those that were removed are left out.

    Raises:
        ConfigError: The file cannot be read, or has what no version knows.
    """
    problems = Problems()
    table = _known_keys_only(without_removed(as_today(read_toml(path, "Configuration"))), path, problems)
    _remove_impossible_values(table, problems)
    cfg = _validated(table, problems)
    problems.raise_any()
    return cfg


# --- Keys -------------------------------------------------------------------------------------------------------------


def unknown_key(key: str, known: list[str], where: str) -> ConfigError:
    """Return a ConfigError with the remedy of a removed setting, or else the nearest known key.

    The nearest key is one with the same last part in another section, else the one with the most similar spelling.
    """
    if instead := remedy(key.removeprefix("no-")):
        return ConfigError(f"{shown(key)} {where} was removed. {instead}", code="removed_setting", setting=key)
    if key in FOREIGN_NAMES:
        near = [FOREIGN_NAMES[key]]
    else:
        last_part = key.rsplit(".", 1)[-1]
        near = [k for k in known if k.rsplit(".", 1)[-1] == last_part]
        near = near or difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else "`openrlhf-tir train --help` lists every key."
    return ConfigError(f"Unknown key {shown(key)} {where}. {hint}", code="unknown_setting", setting=key)


def _environments_in(table: Mapping[str, Any]) -> list[str]:
    """Return the names of the environments of a nested table."""
    envs = table.get(ENVS, {})
    return [name for name in envs if NAME.fullmatch(name)] if isinstance(envs, Mapping) else []


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted names into nested tables: {"a.b": 1} -> {"a": {"b": 1}}."""
    out: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, leaf = name.split(".")
        node = out
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return out


# --- Recipes ----------------------------------------------------------------------------------------------------------


def find_recipe(name: str, beside: Path | None = None) -> Path:
    """Return the file of a recipe.

    Args:
        name: A path, or the name of a recipe in openrlhf_tir/config/recipes.
        beside: Directory that a relative path counts from before the current one.

    Raises:
        ConfigError: There is no such file.
    """
    given = local_path(name, "recipe")
    candidates = [given, RECIPES / (name if name.endswith(".toml") else f"{name}.toml")]
    if beside is not None:
        candidates.insert(0, beside / name)
    for path in candidates:
        if query_path(path, Path.is_file, "recipe"):
            return path
    known = ", ".join(sorted(p.stem for p in RECIPES.glob("*.toml"))) or "none"
    raise ConfigError(
        f"Recipe {shown(name)} is neither a file nor the name of a recipe. Known: {known}."
        " Give one of them or a path to a TOML file.",
        code="unknown_recipe",
    )


def read_recipe(
    name: str, problems: Problems, beside: Path | None = None, seen: tuple[Path, ...] = ()
) -> dict[str, Any]:
    """Return the nested table of a recipe, merged with every recipe that it extends.

    Args:
        name: Name or path of the recipe.
        problems: Collects the mistakes. The keys concerned are not in the table.
        beside: As for `find_recipe`.
        seen: The recipes that extend this one.

    Raises:
        ConfigError: There is no table at all: no such file, not TOML, or a circle of `extends`.
    """
    path = find_recipe(name, beside)
    if path.resolve() in seen:
        raise ConfigError(
            f"Recipe {path} extends itself by way of {' -> '.join(p.name for p in seen)}. Remove one 'extends'.",
            code="recipe",
        )
    if len(seen) == MAX_EXTENDS:
        raise ConfigError(
            f"Recipe {seen[0]} extends more than {MAX_EXTENDS} others, one by the other. Merge some of them.",
            code="recipe",
        )
    table = read_toml(path, "Recipe")
    parent = table.pop("extends", None)
    table = own_files.renamed(_known_keys_only(table, path, problems), own_files.absolute(path.parent))
    if path.parent != RECIPES:  # the package's own recipes name models on the hub, or what a run has written
        table = recipe_paths.beside(table, path.parent)
    if parent is None:
        return table
    if not isinstance(parent, str):
        raise ConfigError(
            f"'extends' in {path} is {shown(parent)}. It names one recipe: extends = \"other.toml\".", code="recipe"
        )
    return join_recipes(read_recipe(parent, problems, path.parent, (*seen, path.resolve())), table)


def _known_keys_only(table: Mapping[str, Any], path: Path, problems: Problems) -> dict[str, Any]:
    """Return the table without keys that are not settings; each of these is a problem."""
    known = known_keys(_environments_in(table))
    # Each part of a dotted name that ends before a dot: "a" and "a.b" of "a.b.c".
    sections = {key[:i] for key in known for i, character in enumerate(key) if character == "."} | {ENVS}

    def visit(node: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for key, value in node.items():
            name = f"{prefix}{key}"
            if "." in key and (name in sections or name in known):
                problems.add(
                    f"{shown(key)} in recipe {path} is one name, as it is quoted. Write it without quotes: the dot"
                    " divides section and key.",
                    code="recipe",
                )
            elif prefix == f"{ENVS}." and not isinstance(value, Mapping):
                problems.add(
                    f"{name} in recipe {path} is {shown(value)}, and [{ENVS}] holds environments by name. Write"
                    f" [{ENVS}.NAME] above it, or [env] if there is only one.",
                    code="recipe",
                )
            elif name in sections and isinstance(value, Mapping):
                kept[key] = visit(value, f"{name}.")
            elif name in sections:
                problems.add(
                    f"{name} in recipe {path} is {shown(value)}, but it is a section."
                    f" Write [{name}] and its keys below.",
                    code="recipe",
                )
            elif name in known:
                kept[key] = value
            elif prefix == f"{ENVS}." and not NAME.fullmatch(key):
                problems.add(
                    f"[{ENVS}.{shown(key)}] in recipe {path} is not a name of an environment."
                    " Use letters, digits, - and _, at most 64.",
                    code="recipe",
                )
            else:
                problems.add(unknown_key(name, known, f"in recipe {path}"))
        return kept

    return visit(table, "")


def _without_other_modes(recipe: dict[str, Any], mode: str | None) -> dict[str, Any]:
    """Return the recipe without what it sets for its own pipeline.mode if `mode`, an override, is another one."""
    pipeline = recipe.get("pipeline", {})
    if mode is None or mode == pipeline.get("mode", Config().pipeline.mode):
        return recipe
    return recipe | {"pipeline": {k: v for k, v in pipeline.items() if k not in RESET_BY_MODE}}


def _without_command_line_only(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe without the settings that count on the command line only."""
    out = dict(recipe)
    for name in COMMAND_LINE_ONLY:
        section, _, key = name.partition(".")
        if isinstance(table := out.get(section), Mapping):
            out[section] = {k: v for k, v in table.items() if k != key}
    return out


# --- Values -----------------------------------------------------------------------------------------------------------


def _remove_impossible_values(table: dict[str, Any], problems: Problems) -> None:
    """Remove values that no setting can have, whatever its type, and turn "unset" into None, or into "" where that is
    the default.

    A NUL byte or a text that is not Unicode would break whoever prints, stores or sends it; a number that is not finite
    equals none, also in the comparison of a resume, and JSON has no dates.
    """
    for setting in settings_with(_environments_in(table)):
        *parents, leaf = setting.name.split(".")
        node: Any = table
        for parent in parents:
            node = node.get(parent, {})
        if leaf not in node:
            continue
        value = node[leaf]
        if value == UNSET and type(None) in get_args(setting.info.annotation):
            node[leaf] = None
        elif value == UNSET and setting.info.default == "":
            node[leaf] = ""
        elif reason := _unprintable(value) or _mistyped(value, setting.info.annotation):
            problems.add(
                f"{setting.name} = {shown(value)} is not accepted: {reason}. Set --{setting.name} to another value.",
                code="invalid_value",
            )
            problems.leave_out(setting.name)
            del node[leaf]


def _mistyped(value: Any, annotation: Any) -> str | None:
    """Return why a value that pydantic would convert is a mistake; None if it is none."""
    accepted = _accepted(annotation)
    if bool not in accepted and accepted & {int, float} and _has_boolean(value):
        number = "a whole number" if int in accepted else "a number"
        words = sorted(repr(word) for word in accepted if isinstance(word, str))
        return f"{' or '.join([number, *words])} is expected"
    if annotation is Path and value == "":
        return "a path is expected, and the text is empty"
    return None


def _accepted(annotation: Any) -> set[Any]:
    """Return the types and words that a setting takes, also as a part of its value."""
    if get_origin(annotation) is Literal:
        return {*get_args(annotation)}
    if get_origin(annotation) is Annotated:
        return _accepted(get_args(annotation)[0])
    parts = get_args(annotation)
    return {kind for part in parts for kind in _accepted(part)} if parts else {annotation}


def _has_boolean(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_boolean, value.values()))
    return any(map(_has_boolean, value)) if isinstance(value, list | tuple) else isinstance(value, bool)


def _unprintable(value: Any) -> str | None:
    """Return why a value, or one inside it, cannot be stored and printed; None if it can."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "the number does not fit into 64 bits"
    if isinstance(value, float) and not math.isfinite(value):
        return "the number is not finite"
    if isinstance(value, date | time):
        return "no setting takes a date or a time, only the text of one, in quotes"
    if isinstance(value, str):
        if "\0" in value:
            return "the text holds a NUL byte"
        try:
            value.encode()
        except UnicodeEncodeError:
            return "the text is not valid Unicode, so UTF-8 cannot hold it"
    if isinstance(value, Mapping):
        return next((reason for pair in value.items() for part in pair if (reason := _unprintable(part))), None)
    if isinstance(value, list | tuple):
        return next((reason for part in value if (reason := _unprintable(part))), None)
    return None


def _validated(table: dict[str, Any], problems: Problems) -> Config:
    """Return the Config of a table. Values that pydantic refuses are reported and left out, and so is a section whose
    values contradict one another.

    Each round removes what pydantic has refused, so the last one, at the latest of an empty table, succeeds.
    """
    while True:
        try:
            return Config.model_validate(table, context=WITHOUT_RULES)
        except ValidationError as e:
            messages: dict[str, str] = {}
            for error in e.errors(include_url=False):
                messages.setdefault(_place(error["loc"]), _explain(error))
            problems.add(messages.values(), code="invalid_value")
            for place in messages:
                problems.leave_out(place)
                _drop(table, place.rstrip("."))


def _place(loc: tuple[int | str, ...]) -> str:
    """Return where pydantic's error belongs: the dotted name of a setting, or of a section with a dot at its end."""
    path = ".".join(map(str, loc))
    for setting in settings_with(env_names([path])):
        # Behind a setting's name `loc` has the place in its value: a number in a list, a key of a table.
        if f"{path}.".startswith(f"{setting.name}."):
            return setting.name
    return f"{path}."


def _drop(table: dict[str, Any], name: str) -> None:
    """Remove a key or a section. It is in the table: defaults are never refused."""
    *parents, leaf = name.split(".")
    for parent in parents:
        table = table[parent]
    del table[leaf]


def _explain(error: Mapping[str, Any]) -> str:
    """Return one error of pydantic's report as fact, value and remedy."""
    name = _place(error["loc"]).rstrip(".")
    if error["type"] == "value_error":
        message = str(error["ctx"]["error"])
        return message if settings_in(message) else f"{name}: {message}"
    setting = next((s for s in settings_with(env_names([name])) if s.name == name), None)
    meaning = f" It means: {setting.info.description}" if setting and setting.info.description else ""
    fact = f"{name} = {shown(error['input'])} is not accepted"
    if error["type"] in ("missing", "too_long", "tuple_type") and setting:
        count = _values_of_tuple(setting.info.annotation)
        if count:
            return f"{fact}: it takes {count} values. Give as many.{meaning}"
    return f"{fact}: {error['msg'][0].lower()}{error['msg'][1:]}. Set --{name} to such a value.{meaning}"


def _values_of_tuple(annotation: Any) -> int:
    """Return how many values a tuple has; 0 if their number is free."""
    parts = get_args(annotation)
    if get_origin(annotation) is tuple:
        return 0 if Ellipsis in parts else len(parts)
    return max(map(_values_of_tuple, parts), default=0)


def to_toml(cfg: Config, *, only_changes: bool = False) -> str:
    """Return the configuration as a recipe that gives the same configuration.

    TOML has no null: None is left out if it is the default, and written as "unset" if it is not.

    Args:
        cfg: The configuration.
        only_changes: Leave out defaults.
    """

    def written(table: Mapping[str, Any], base: Mapping[str, Any], section: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        tables: dict[str, Any] = {}
        for key, value in table.items():
            if isinstance(value, Mapping):
                inner = written(value, base.get(key, {}), key)
                # An environment without any settings of its own is still an environment. An empty table among options
                # is a value, and as [envs.NAME] options it means none of those of [env].
                if inner or section == ENVS or (not value and value != base.get(key)):
                    tables[key] = inner
            elif value is None and base.get(key) is None:
                continue
            elif not (only_changes and key in base and value == base[key]):
                values[key] = value
        return values | tables  # TOML has a section's own values before the sections in it.

    return dump(written(cfg.model_dump(), Config().model_dump(), ""))
