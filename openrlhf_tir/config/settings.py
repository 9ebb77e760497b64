"""Settings: recipe file + overrides -> Config.

    recipe.toml -> (extends ...) -> nested dict -+
                                                 +-> Config, or ConfigError with one line per mistake
    flags {"actor.l2": "0.01"} ------------------+

A recipe holds only what differs from the defaults, or from the recipe that it `extends`. pydantic does the typing; this
module finds files, names the nearest known key, and turns pydantic's report into fact, value and remedy.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ..errors import ConfigError
from . import own_files, recipe_paths, rules
from .paths import asked, local_path, shown
from .problems import Problems
from .removed_settings import remedy
from .schema import WITHOUT_RULES, Config
from .sections.envs import NAME, NamedEnv
from .toml_file import dump, read_toml

RECIPES = Path(__file__).parent / "recipes"
COMMAND_LINE_ONLY = ("train.overwrite",)
"""Settings that delete: a recipe's value does not count, as whoever extends or repeats it has not asked for that."""
MAX_EXTENDS = 32
"""Recipes in one chain of `extends`."""


class Setting(NamedTuple):
    """One leaf of the config tree."""

    name: str
    section: str
    section_doc: str
    info: FieldInfo


def walk(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[Setting]:
    """Every leaf field, in the order of the classes: `actor.num_nodes`, `algo.advantage.estimator`, ..."""
    for name, info in model.model_fields.items():
        path = f"{prefix}{name}"
        if path == ENVS:
            continue  # its fields depend on the names of the environments: settings_of_env
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from walk(info.annotation, f"{path}.")
        else:
            about = " ".join((model.__doc__ or "").partition("\n\n")[0].split())
            yield Setting(path, prefix.rstrip(".") or "run", about, info)


@cache
def all_settings() -> tuple[Setting, ...]:
    """`walk` of Config, once."""
    return tuple(walk())


ENVS = "envs"


@cache
def settings_of_env(name: str) -> tuple[Setting, ...]:
    """Every field of [envs.NAME]."""
    return tuple(walk(NamedEnv, f"{ENVS}.{name}."))


def env_names(keys: Iterable[str]) -> list[str]:
    """The environments that dotted keys speak of: `envs.calc.url` of calc."""
    parts = (key.split(".") for key in keys)
    return [*dict.fromkeys(p[1] for p in parts if len(p) > 2 and p[0] == ENVS and NAME.fullmatch(p[1]))]


def settings_with(envs: Iterable[str]) -> list[Setting]:
    """Every setting of a run that has these environments."""
    return [*all_settings(), *(s for name in envs for s in settings_of_env(name))]


def known_keys(envs: Iterable[str] = ()) -> list[str]:
    return [s.name for s in settings_with(envs)]


def _envs_of(table: Mapping[str, Any]) -> list[str]:
    """The environments of a nested table."""
    envs = table.get(ENVS, {})
    return [name for name in envs if NAME.fullmatch(name)] if isinstance(envs, Mapping) else []


CALLED_ELSEWHERE = {"reward.function": "reward.name", "reward.functions": "reward.weights"}
"""What people who come from other trainers call a setting."""


def unknown_key(key: str, known: list[str], where: str) -> ConfigError:
    """Return a ConfigError with the remedy of a removed setting, or else the nearest known key.

    The nearest key is one with the same last part in another section, else the one with the most similar spelling.
    """
    if instead := remedy(key):
        return ConfigError(f"{shown(key)} {where} was removed. {instead}", code="removed_setting", setting=key)
    elsewhere = [k for k in known if k.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
    if key in CALLED_ELSEWHERE:
        elsewhere = [CALLED_ELSEWHERE[key]]
    near = elsewhere or difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else "`openrlhf-tir train --help` lists every key."
    return ConfigError(f"Unknown key {shown(key)} {where}. {hint}", code="unknown_setting", setting=key)


def find_recipe(name: str, beside: Path | None = None) -> Path:
    """The file of `name`: a path, a path relative to `beside`, or the name of one in openrlhf_tir/config/recipes."""
    given = local_path(name, "recipe")
    candidates = [given, RECIPES / (name if name.endswith(".toml") else f"{name}.toml")]
    if beside is not None:
        candidates.insert(0, beside / name)
    for path in candidates:
        if asked(path, Path.is_file, "recipe"):
            return path
    known = ", ".join(sorted(p.stem for p in RECIPES.glob("*.toml"))) or "none"
    raise ConfigError(
        f"Recipe {shown(name)} is neither a file nor the name of a recipe. Known: {known}."
        " Give one of them or a path to a TOML file.",
        code="unknown_recipe",
    )


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Deep merge: `over` wins, tables are joined, lists are replaced."""
    out = dict(base)
    for key, value in over.items():
        out[key] = merge(out[key], value) if isinstance(value, Mapping) and isinstance(out.get(key), Mapping) else value
    return out


def _joined(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`merge`, where a reward that `over` names takes the place of the weighted sum of `base`, which would hide it, and
    of its tables of options."""
    mine, theirs = over.get("reward", {}), base.get("reward", {})
    if "name" in mine and "weights" not in mine and theirs.get("weights"):
        base = {**base, "reward": {k: v for k, v in theirs.items() if k not in ("weights", "options")}}
    return merge(base, over)


def read_recipe(
    name: str, problems: Problems, beside: Path | None = None, seen: tuple[Path, ...] = ()
) -> dict[str, Any]:
    """The nested table of a recipe with everything that it extends merged in, without the keys that `problems` has been
    told of.

    Raises ConfigError where there is no table at all: no such file, not TOML, a circle of `extends`.
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
    table = _clip_for_both_sides(_known(table, path, problems))
    table = own_files.renamed(table, own_files.absolute(path.parent))
    if path.parent != RECIPES:  # those of the package name what is on the hub, or what a run has left
        table = recipe_paths.beside(table, path.parent)
    if parent is None:
        return table
    if not isinstance(parent, str):
        raise ConfigError(
            f"'extends' in {path} is {shown(parent)}. It names one recipe: extends = \"other.toml\".", code="recipe"
        )
    return _joined(read_recipe(parent, problems, path.parent, (*seen, path.resolve())), table)


def _known(table: Mapping[str, Any], path: Path, problems: Problems) -> dict[str, Any]:
    """The table without the keys that no field has; each is a problem."""
    known = known_keys(_envs_of(table))
    sections = {k[:i] for k in known for i, c in enumerate(k) if c == "."} | {ENVS}

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
                    f" [{ENVS}.NAME] above it, or [env] where there is only one.",
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
                    f"[{ENVS}.{shown(key)}] in recipe {path} is no name of an environment."
                    " Use letters, digits, - and _, at most 64.",
                    code="recipe",
                )
            else:
                problems.add(unknown_key(name, known, f"in recipe {path}"))
        return kept

    return visit(table, "")


def _clip_for_both_sides(table: dict[str, Any]) -> dict[str, Any]:
    """Where actor.eps_clip is given without eps_clip_low_high it is what clips: the latter's default or an extended
    recipe's would hide it."""
    actor = table.get("actor", {})
    if "eps_clip" in actor and "eps_clip_low_high" not in actor:
        return table | {"actor": actor | {"eps_clip_low_high": None}}
    return table


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{"a.b": 1} -> {"a": {"b": 1}}"""
    out: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, leaf = name.split(".")
        node = out
        for p in parents:
            node = node.setdefault(p, {})
        node[leaf] = value
    return out


def _without_other_modes(recipe: dict[str, Any], mode: str | None) -> dict[str, Any]:
    """The recipe, without what it set for its own pipeline.mode if `mode`, an override, differs: modes are presets."""
    pipeline = recipe.get("pipeline", {})
    if mode is None or mode == pipeline.get("mode", Config().pipeline.mode):
        return recipe
    return recipe | {
        "pipeline": {
            k: v for k, v in pipeline.items() if k not in ("max_staleness", "depth", "push_every", "fill_batches")
        }
    }


def _without_command_line_only(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe without the settings that count on the command line only."""
    out = dict(recipe)
    for name in COMMAND_LINE_ONLY:
        section, _, key = name.partition(".")
        if isinstance(table := out.get(section), Mapping):
            out[section] = {k: v for k, v in table.items() if k != key}
    return out


def load(recipe: str | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Build the Config of a recipe (name, path, or None for the defaults) and dotted overrides, which win.

    A pipeline.mode among the overrides takes its own defaults of staleness and depth along.
    Raises ConfigError, one line per mistake: unknown recipe or key, wrong type, or values that contradict one another.
    """
    problems = Problems()
    cfg = attempt(recipe, overrides or {}, problems)
    problems.raise_any()
    return cfg


def attempt(
    recipe: str | None,
    overrides: Mapping[str, Any],
    problems: Problems,
    rules_of: Callable[[Config], Iterable[str]] = rules.violations,
    *,
    ranks_of: Callable[[Config], Config] | None = None,
) -> Config:
    """`load`, but each mistake is added to `problems` and replaced by the default, so that the caller can look for
    more.

    rules_of: what of the sections must fit together; a run of reinforcement learning's.
    ranks_of: what fills in learner ranks that are not set by what this machine has (ranks.py).
    Raises ConfigError where nothing can be said about the rest: the recipe is no file, or no TOML.
    """
    known = known_keys(env_names(overrides))
    for key in overrides:
        if key not in known:
            problems.add(unknown_key(key, known, "among the overrides"))
    given = own_files.renamed(nest({k: v for k, v in overrides.items() if k in known}), own_files.absolute(Path()))
    own = {} if recipe is None else _without_command_line_only(read_recipe(recipe, problems))
    table = _joined(_without_other_modes(own, overrides.get("pipeline.mode")), _clip_for_both_sides(given))
    _leave_out_unprintable(table, problems)
    cfg = _validated(table, problems)
    if ranks_of:
        cfg = ranks_of(cfg)
    problems.add(rules_of(cfg), code="conflict")
    return cfg


def _leave_out_unprintable(table: dict[str, Any], problems: Problems) -> None:
    """Values that no setting can have, whatever its type: they break whoever prints, stores or sends them."""
    for s in settings_with(_envs_of(table)):
        *parents, leaf = s.name.split(".")
        node: Any = table
        for p in parents:
            node = node.get(p, {})
        if leaf not in node:
            continue
        value = node[leaf]
        if value == "unset" and type(None) in get_args(s.info.annotation):
            node[leaf] = None
        elif why := _unprintable(value) or _mistyped(value, s.info.annotation):
            problems.add(
                f"{s.name} = {shown(value)} is not accepted: {why}. Set --{s.name} to another value.",
                code="invalid_value",
            )
            problems.leave_out(s.name)
            del node[leaf]


def _mistyped(value: Any, annotation: Any) -> str | None:
    """What pydantic would take for something else."""
    if isinstance(value, bool) and annotation in (int, float, int | None, float | None):
        return f"a {'whole number' if int in (annotation, *get_args(annotation)) else 'number'} is wanted"
    if annotation is Path and value == "":
        return "a path is wanted, and the text is empty"
    return None


def _unprintable(value: Any) -> str | None:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "the number does not fit into 64 bits"
    if isinstance(value, str):
        if "\0" in value:
            return "the text holds a NUL byte"
        try:
            value.encode()
        except UnicodeEncodeError:
            return "the text is not valid Unicode, so UTF-8 cannot hold it"
    if isinstance(value, Mapping):
        return next((why for pair in value.items() for part in pair if (why := _unprintable(part))), None)
    if isinstance(value, list | tuple):
        return next((why for part in value if (why := _unprintable(part))), None)
    return None


def _validated(table: dict[str, Any], problems: Problems) -> Config:
    """The Config of a table; values that pydantic refuses are told and left out, and so is a section whose values
    contradict one another."""
    while True:
        try:
            return Config.model_validate(table, context=WITHOUT_RULES)
        except ValidationError as e:
            bad: dict[str, str] = {}
            for err in e.errors(include_url=False):
                bad.setdefault(_place(err["loc"]), _explain(err))
            problems.add(bad.values(), code="invalid_value")
            for place in bad:
                problems.leave_out(place)
                _drop(table, place.rstrip("."))


def _place(loc: tuple[int | str, ...]) -> str:
    """Where an error belongs: a field's dotted name, or `section.`."""
    known = settings_with(env_names([".".join(map(str, loc))]))
    field = next((s.name for s in known if tuple(s.name.split(".")) == tuple(loc[: s.name.count(".") + 1])), None)
    return field or ".".join(map(str, loc)) + "."


def _drop(table: dict[str, Any], name: str) -> None:
    """Remove a key or a section; every refused place is in the table, since defaults are accepted."""
    *parents, leaf = name.split(".")
    for p in parents:
        table = table[p]
    del table[leaf]


def _explain(err: Mapping[str, Any]) -> str:
    """One line of pydantic's report as fact, value and remedy."""
    if err["type"] == "value_error":
        return str(err["ctx"]["error"])
    name = _place(err["loc"]).rstrip(".")
    field = next((s for s in settings_with(env_names([name])) if s.name == name), None)
    about = f" It means: {field.info.description}." if field and field.info.description else ""
    if field and err["type"] in ("missing", "too_long", "tuple_type") and (count := _count(field.info.annotation)):
        return f"{name} = {shown(err['input'])} is not accepted: it takes {count} values. Give as many.{about}"
    return (
        f"{name} = {shown(err['input'])} is not accepted: {err['msg'][0].lower()}{err['msg'][1:]}."
        f" Set --{name} to such a value.{about}"
    )


def _count(annotation: Any) -> int:
    """How many values a tuple has; 0 where their number is free."""
    parts = get_args(annotation)
    if get_origin(annotation) is tuple:
        return 0 if Ellipsis in parts else len(parts)
    return max(map(_count, parts), default=0)


def to_toml(cfg: Config, *, only_changes: bool = False) -> str:
    """The config as a recipe that gives the same config. `only_changes` leaves out defaults.

    TOML has no null: None is left out where it is the default, and written as "unset" where it is not.
    """

    def written(table: Mapping[str, Any], base: Mapping[str, Any], section: str) -> dict[str, Any]:
        leaves = {k: v for k, v in table.items() if not isinstance(v, Mapping) and (v, base.get(k)) != (None, None)}
        changed = {k for k, v in leaves.items() if not (only_changes and k in base and v == base[k])}
        if "eps_clip" in changed:  # alone it would stand for both sides
            changed.add("eps_clip_low_high")
        out: dict[str, Any] = {k: v for k, v in leaves.items() if k in changed}
        for k, v in table.items():
            # an environment that sets nothing is one
            if isinstance(v, Mapping) and ((inner := written(v, base.get(k, {}), k)) or section == ENVS):
                out[k] = inner
        return out

    return dump(written(cfg.model_dump(), Config().model_dump(), ""))
