"""Settings: recipe file + overrides -> Config.

    recipe.toml -> (extends ...) -> nested dict -+
                                                 +-> Config, or ConfigError with one line per mistake
    flags {"actor.l2": "0.01"} ------------------+

A recipe holds only what differs from the defaults, or from the recipe that it `extends`. pydantic does the typing; this module
finds files, names the nearest known key, and turns pydantic's report into fact, value and remedy.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ..errors import ConfigError
from .schema import Config

RECIPES = Path(__file__).parent / "recipes"


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
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from walk(info.annotation, f"{path}.")
        else:
            yield Setting(path, prefix.rstrip(".") or "run", (model.__doc__ or "").strip().split("\n")[0], info)


def known_keys() -> list[str]:
    return [s.name for s in walk()]


def unknown_key(key: str, known: list[str], where: str) -> ConfigError:
    """ConfigError that names the nearest known key: the same last part in another section, else by spelling."""
    elsewhere = [k for k in known if k.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
    near = elsewhere or difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else "`openrlhf-tir train --help` lists every key."
    return ConfigError(f"Unknown key {key!r} {where}. {hint}")


def find_recipe(name: str, beside: Path | None = None) -> Path:
    """The file that `name` means: a path, a path relative to `beside`, or the name of a file in openrlhf_tir/config/recipes."""
    candidates = [Path(name).expanduser()]
    if beside is not None:
        candidates.insert(0, beside / name)
    candidates.append(RECIPES / (name if name.endswith(".toml") else f"{name}.toml"))
    for path in candidates:
        if path.is_file():
            return path
    known = ", ".join(sorted(p.stem for p in RECIPES.glob("*.toml"))) or "none"
    raise ConfigError(f"Recipe {name!r} is neither a file nor the name of a recipe. Known: {known}. Give one of them or a path to a TOML file.")


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Deep merge: `over` wins, tables are joined, lists are replaced."""
    out = dict(base)
    for key, value in over.items():
        out[key] = merge(out[key], value) if isinstance(value, Mapping) and isinstance(out.get(key), Mapping) else value
    return out


def read_recipe(name: str, beside: Path | None = None, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The nested table of a recipe with everything that it extends merged in. Raises ConfigError for bad TOML, keys and cycles."""
    path = find_recipe(name, beside)
    if path.resolve() in seen:
        raise ConfigError(f"Recipe {path} extends itself by way of {' -> '.join(p.name for p in seen)}. Remove one 'extends'.")
    try:
        table = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"Recipe {path} is not valid TOML: {e}. Correct that line.") from None
    parent = table.pop("extends", None)
    _check_keys(table, path)
    if parent is None:
        return table
    if not isinstance(parent, str):
        raise ConfigError(f"'extends' in {path} is {parent!r}. It names one recipe: extends = \"other.toml\".")
    return merge(read_recipe(parent, path.parent, (*seen, path.resolve())), table)


def _check_keys(table: Mapping[str, Any], path: Path) -> None:
    known = known_keys()
    sections = {k[:i] for k in known for i, c in enumerate(k) if c == "."}

    def visit(node: Mapping[str, Any], prefix: str) -> None:
        for key, value in node.items():
            name = f"{prefix}{key}"
            if name in sections:
                if not isinstance(value, Mapping):
                    raise ConfigError(f"{name} in recipe {path} is {value!r}, but it is a section. Write [{name}] and its keys below.")
                visit(value, f"{name}.")
            elif name not in known:
                raise unknown_key(name, known, f"in recipe {path}")

    visit(table, "")


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
    """The recipe, without what it has set for its own pipeline.mode if `mode`, an override, is another one: modes are presets."""
    pipeline = recipe.get("pipeline", {})
    if mode is None or mode == pipeline.get("mode", Config().pipeline.mode):
        return recipe
    return recipe | {"pipeline": {k: v for k, v in pipeline.items() if k not in ("max_staleness", "depth", "push_every")}}


def load(recipe: str | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Build the Config of a recipe (name, path, or None for the defaults) and dotted overrides, which win.

    A pipeline.mode among the overrides takes its own defaults of staleness and depth along.
    Raises ConfigError: unknown recipe or key, wrong type, or values that contradict one another.
    """
    overrides = overrides or {}
    known = known_keys()
    for key in overrides:
        if key not in known:
            raise unknown_key(key, known, "among the overrides")
    table = merge(_without_other_modes(read_recipe(recipe), overrides.get("pipeline.mode")) if recipe else {}, nest(overrides))
    try:
        return Config.model_validate(table)
    except ValidationError as e:
        raise ConfigError("\n".join(_explain(err) for err in e.errors())) from None


def _explain(err: Mapping[str, Any]) -> str:
    """One line of pydantic's report as fact, value and remedy."""
    loc = err["loc"]
    if err["type"] == "value_error":
        return str(err["ctx"]["error"])
    field = next((s for s in walk() if tuple(s.name.split(".")) == tuple(loc[: s.name.count(".") + 1])), None)
    name = field.name if field else ".".join(map(str, loc))
    about = f" It means: {field.info.description}." if field and field.info.description else ""
    return f"{name} = {err['input']!r} is not accepted: {err['msg'][0].lower()}{err['msg'][1:]}. Set --{name} to such a value.{about}"


def to_toml(cfg: Config, *, only_changes: bool = False) -> str:
    """The config as a recipe. Unset (None) fields are left out, since TOML has no null; `only_changes` leaves out defaults too."""
    default = Config().model_dump()
    lines: list[str] = []

    def emit(table: Mapping[str, Any], base: Mapping[str, Any], prefix: str) -> None:
        leaves = {k: v for k, v in table.items() if not isinstance(v, Mapping) and v is not None and not (only_changes and v == base[k])}
        if leaves and prefix:
            lines.extend(["", f"[{prefix}]"])
        lines.extend(f"{k} = {_toml_value(v)}" for k, v in leaves.items())
        for k, v in table.items():
            if isinstance(v, Mapping):
                emit(v, base[k], f"{prefix}.{k}" if prefix else k)

    emit(cfg.model_dump(), default, "")
    return "\n".join(lines).strip() + "\n"


def _toml_value(v: Any) -> str:
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, int | float):
        return repr(v)
    if isinstance(v, list | tuple):
        return "[" + ", ".join(_toml_value(x) for x in v) + "]"
    return _toml_string(str(v))


def _toml_string(text: str) -> str:
    """A TOML basic string: its escapes are JSON's, plus DEL, which TOML wants escaped and JSON does not."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
