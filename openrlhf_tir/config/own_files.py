"""Resolve the names of user code in settings: functions and classes in the user's files.

    recipe beside reward.py  "reward.py:score"  ->  "/abs/dir/reward.py:score"    relative to the recipe's directory
    flag                     "reward.py:score"  ->  "/cwd/reward.py:score"        relative to the current directory
    flag                     "reward:score"     ->  "/cwd/reward.py:score"        a module that only this directory has
    start of a run           "/abs/dir/reward.py:score"  ->  "RUN_DIR/own/reward-1f2e3d4c.py:score"   (`freeze`)
      with modules beside it                             ->  "RUN_DIR/own/reward-1f2e3d4c/reward-1f2e3d4c.py:score"

A run works with copies in its own directory, which every node sees. So they reach each actor and rank and their
processes, editing a file during the run changes nothing, and the directory holds the code of the run. Modules beside a
file that it imports are copied with it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..user_code.neighbours import COPY, digests, neighbours
from .catalog import all_settings, settings_of_env
from .schema import Config

BARE = {"train.agent_func_path": "AgentExecutor", "reward.remote_url": "reward_func"}
"""OpenRLHF's settings that name a file alone -> the attribute that is meant: `agent.py` is `agent.py:AgentExecutor`."""
OWN = "own"
"""Directory of the copies, in the run's directory."""

FILE = re.compile(r"(?P<path>.+\.py)(?P<attribute>:\w+)?")
"""The name of a function or class in a file.

Without an attribute, the only class of the file may be meant (env.file); elsewhere `plugins.load` refuses it."""
_TABLE = re.compile(r".+\.ya?ml")
_MODULE = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<attribute>\w+)")
OUR_PACKAGES = {"openrlhf_tir", "env_servers", "miniatures"}
"""What their modules hold is not user code, also where a setting names it as such."""


def renamed(table: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return a nested table with `change` applied to every name of user code in it.

    Which settings may name user code is declared at the setting (`names`, setting.py).
    """
    out = dict(table)
    for setting, keys in _settings().items():
        _rename(out, setting.split("."), change, setting, keys=keys)
    return out


@cache
def _settings() -> dict[str, bool]:
    """Return every setting that may name user code -> True if the keys of its table are the names, False if its value
    or the items of its list are. `*` stands for any environment."""
    everywhere = [*all_settings(), *settings_of_env("*")]
    return {
        s.name: s.metadata.names == "user_code_keys" for s in everywhere if s.metadata.names.startswith("user_code")
    }


def _rename(node: dict[str, Any], path: list[str], change: Callable[[str], str], setting: str, *, keys: bool) -> None:
    """Change `node` in place; tables inside it are copied first."""
    for name in [n for n in node if path[0] in ("*", n)]:
        if len(path) == 1:
            value = with_attribute(setting, node[name]) if isinstance(node[name], str) else node[name]
            node[name] = _changed(value, change, keys=keys)
        elif isinstance(node[name], Mapping):
            node[name] = dict(node[name])
            _rename(node[name], path[1:], change, setting, keys=keys)


def with_attribute(setting: str, value: str) -> str:
    """Return the value of a setting in BARE (also an environment's) with the attribute; any other value as it is."""
    attribute = next((name for end, name in BARE.items() if setting.endswith(end)), None)
    return f"{value}:{attribute}" if attribute and value.endswith(".py") else value


def _changed(value: Any, change: Callable[[str], str], *, keys: bool) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return [change(v) if isinstance(v, str) else v for v in value]
    if isinstance(value, Mapping) and keys:
        return {change(k): v for k, v in value.items()}
    return value


def absolute(directory: Path) -> Callable[[str], str]:
    """Return a function that makes names of files relative to `directory` absolute.

    The name of a module that is found there and nowhere else becomes the name of its file. The function never raises:
    `plugins.load` reports what is wrong with a name.
    """

    def change(name: str) -> str:
        if m := FILE.fullmatch(name):
            path = directory / os.path.expanduser(m["path"])
            return f"{os.path.normpath(path.absolute())}{m['attribute'] or ''}"
        if _TABLE.fullmatch(name):  # verl's tool configuration, which is read beside the modules that it names
            return str(Path(os.path.normpath((directory / os.path.expanduser(name)).absolute())))
        if m := _MODULE.fullmatch(name):
            path = directory / (m["module"].replace(".", "/") + ".py")
            if os.path.isfile(path) and not _importable(m["module"]):
                return f"{path.absolute()}:{m['attribute']}"
        return name

    return change


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def files_of(cfg: Config) -> list[Path]:
    """Return the files of user code that a configuration names."""
    files: dict[Path, None] = {}

    def note(name: str) -> str:
        if m := FILE.fullmatch(name):
            files[Path(m["path"])] = None
        return name

    renamed(cfg.model_dump(), note)
    return list(files)


def has_user_code(cfg: Config) -> bool:
    """Return True if a configuration names user code: in a file, or in a module that is installed."""
    names: list[str] = []

    def note(name: str) -> str:
        names.append(name)
        return name

    renamed(cfg.model_dump(), note)
    modules = [m["module"].partition(".")[0] for name in names if (m := _MODULE.fullmatch(name))]
    return any(FILE.fullmatch(name) or _TABLE.fullmatch(name) for name in names) or not set(modules) <= OUR_PACKAGES


def copied(path: Path, directory: Path) -> Path:
    """Copy a file of user code, with the modules and packages beside it that it imports, and return its copy.

    A copy's name has a digest of the content, so that two versions of a file do not collide.

    Args:
        path: The file.
        directory: The directory of the copies. A file that is in there already is its own copy.
    """
    if directory in path.parents:
        return path
    copy = directory / _copy_name(path)
    texts = {copy.name: path.read_bytes(), **neighbours(path)}
    for name, text in texts.items():
        there = copy.parent / name
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(text)
    return copy


def by_content(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dumped configuration in which every file of user code has the name of its copy, without the directory.

    So a file and the copy that a run made of it compare as equal, wherever they are, unless one was edited.
    """

    def change(name: str) -> str:
        m = FILE.fullmatch(name)
        if m is None:
            return name
        path = Path(m["path"])
        if OWN in (path.parent.name, path.parent.parent.name) and COPY.fullmatch(path.name):
            return f"{path.name}{m['attribute'] or ''}"
        try:
            return f"{_copy_name(path).name}{m['attribute'] or ''}"
        except OSError:
            return name

    return renamed(tree, change)


def _copy_name(path: Path) -> Path:
    """Return the path of a file's copy in the directory of the copies."""
    digest = hashlib.blake2b(path.read_bytes(), digest_size=4)
    beside = neighbours(path)
    for name, text in sorted(beside.items()):
        digest.update(f"{name}\0{len(text)}\0".encode() + text)
    name = f"{path.stem}-{digest.hexdigest()}"
    return Path(name, f"{name}.py") if beside else Path(f"{name}.py")


def _refuse_two_of_a_name(paths: list[Path]) -> None:
    """Refuse modules of one name beside two files: a process that loads both files has one of them at a time.

    Raises:
        ConfigError: There are two, and they differ.
    """
    first: dict[str, tuple[Path, str]] = {}
    for path in paths:
        for name, digest in digests(neighbours(path)).items():
            other, digest_there = first.setdefault(name, (path, digest))
            if digest_there != digest:
                raise ConfigError(
                    f"{other} and {path} import two modules called {name}, and a process that loads both files has one"
                    " of them. Rename one.",
                    code="user_code",
                )


def freeze(cfg: Config, directory: Path | None = None) -> Config:
    """Copy the files of user code into the run's directory, and return the configuration that names the copies.

    Args:
        cfg: The configuration.
        directory: Another directory for the copies.

    Raises:
        ConfigError: Two files import different modules of one name that stand beside them.
    """
    directory = directory or cfg.run_dir / OWN
    files = files_of(cfg)
    _refuse_two_of_a_name(files)
    copy_of = {str(path): str(copied(path, directory)) for path in files}

    def change(name: str) -> str:
        m = FILE.fullmatch(name)
        return f"{copy_of[m['path']]}{m['attribute'] or ''}" if m else name

    return Config.model_validate(renamed(cfg.model_dump(), change)) if copy_of else cfg
