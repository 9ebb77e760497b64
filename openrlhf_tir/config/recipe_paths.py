"""Resolve the paths in a recipe: they are relative to the recipe's directory, those of flags to the current one.

    recipes/first.toml  prompt_dataset = "tasks.jsonl"   ->  recipes/tasks.jsonl, wherever the command is run
    flag                --data.prompt_dataset tasks.jsonl    relative to the current directory

Functions and classes in files follow the same rule (own_files.py). What a run writes (run_dir) is relative to the
current directory. A name without a suffix of a data file may be one of the hub: it means a file only if that file
exists. So does an option of an environment's server, such as the corpus of a search, if it has a slash or a dot.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from .catalog import all_settings
from .paths import ROW_FILES, can_only_be_path

OPTIONS = "server_options"
"""Table in an environment's section whose values may name files that its server reads."""
RULE = "A path is relative to the recipe that names it, on the command line to the current directory."
"""The rule, for error messages."""


def beside(table: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return a recipe's table with the paths of files that are read made absolute, as the recipe in `directory` means
    them.

    Which settings name such files is declared at the setting (`names`, setting.py).
    """
    out = dict(table)
    for setting in _input_files():
        section, _, key = setting.partition(".")
        values = out.get(section)
        if isinstance(values, Mapping) and key in values:
            out[section] = {**values, key: _changed(values[key], directory)}
    if isinstance(env := out.get("env"), Mapping):
        out["env"] = _with_options(env, directory)
    if isinstance(envs := out.get("envs"), Mapping):
        out["envs"] = {
            name: _with_options(env, directory) if isinstance(env, Mapping) else env for name, env in envs.items()
        }
    return out


@cache
def _input_files() -> tuple[str, ...]:
    return tuple(s.name for s in all_settings() if s.metadata.names == "input_files")


def _with_options(env: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return an environment's section with the paths among the options of its server made absolute."""
    options = env.get(OPTIONS)
    if not isinstance(options, Mapping):
        return dict(env)
    paths = {key: value for key, value in options.items() if isinstance(value, str) and ("/" in value or "." in value)}
    return {
        **env,
        OPTIONS: {**options, **{key: _meant(value, directory, _is_path_option) for key, value in paths.items()}},
    }


def _changed(value: Any, directory: Path) -> Any:
    if isinstance(value, list):
        return [_changed(item, directory) for item in value]
    if not isinstance(value, str):
        return value
    if "," in value and not _exists(directory / value):
        return ",".join(_meant(name.strip(), directory) for name in value.split(","))
    return _meant(value, directory)


def _is_path(name: str) -> bool:
    return can_only_be_path(name) or name.endswith(ROW_FILES)


def _is_path_option(value: str) -> bool:
    """Return True for a path. Options have other values with slashes and dots: names of images, numbers."""
    return value.startswith(("./", "../")) or value in (".", "..") or value.endswith(ROW_FILES)


def _meant(name: str, directory: Path, is_path: Callable[[str], bool] = _is_path) -> str:
    if not name or "\0" in name or "://" in name or name.startswith(("/", "~")):
        return name
    return os.path.normpath(directory.absolute() / name) if is_path(name) or _exists(directory / name) else name


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # no file can have this name
        return False
