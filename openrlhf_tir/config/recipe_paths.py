"""Recipe paths: files that a recipe names count from the recipe's directory, those of flags from the current one.

    recipes/first.toml  prompt_dataset = "tasks.jsonl"   ->  recipes/tasks.jsonl, wherever the command is run
    flag                --data.prompt_dataset tasks.jsonl    the current directory counts

Functions and classes in files follow the same rule (own_files.py). What a run writes (run_dir) counts from the current
directory. A name that may be the hub's, without a suffix of a data file, means a file only if that is there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

INPUTS = (
    "data.prompt_dataset",
    "eval.dataset",
    "sft.dataset",
    "sft.eval_dataset",
    "actor.model_name_or_path",
    "critic.model_name_or_path",
    "ref.model_name_or_path",
    "reward.model_name_or_path",
)
"""Settings that name files or directories which are read, or names on the hub."""
SUFFIXES = (".jsonl", ".json", ".parquet")
RULE = "A path is relative to the recipe that names it, on the command line to the current directory."
"""What the errors say."""


def beside(table: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return a recipe's table with the paths of INPUTS made absolute, as the recipe in `directory` means them."""
    out = dict(table)
    for setting in INPUTS:
        section, _, key = setting.partition(".")
        held = out.get(section)
        if isinstance(held, Mapping) and key in held:
            out[section] = {**held, key: _changed(held[key], directory)}
    return out


def _changed(value: Any, directory: Path) -> Any:
    if isinstance(value, list):
        return [_changed(item, directory) for item in value]
    if not isinstance(value, str):
        return value
    if "," in value and not _exists(directory / value):
        return ",".join(_meant(name.strip(), directory) for name in value.split(","))
    return _meant(value, directory)


def _meant(name: str, directory: Path) -> str:
    if not name or "\0" in name or name.startswith(("/", "~")):
        return name
    local = name.startswith(("./", "../")) or name in (".", "..") or name.endswith(SUFFIXES)
    return os.path.normpath(directory.absolute() / name) if local or _exists(directory / name) else name


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False
