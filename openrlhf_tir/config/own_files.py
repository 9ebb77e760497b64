"""Own files: the settings that may name a function or class of one's own, and what has to be done to such names.

    recipe beside reward.py  "reward.py:score"  ->  "/abs/dir/reward.py:score"    when the recipe is read: the
                                                                                  recipe's directory counts
    flag                     "reward.py:score"  ->  "/cwd/reward.py:score"        the current directory counts
    flag                     "reward:score"     ->  "/cwd/reward.py:score"        a module only the current one has
    run                      "/abs/dir/reward.py:score"  ->  "RUN_DIR/own/reward-1f2e3d4c.py:score"
                                                                                  when a run starts (`freeze`)

A run works with copies in its own directory, which every node sees: they reach each actor and rank and the processes of
these, a file that is edited during the run changes nothing, and the directory holds the run's code."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from .catalog import all_settings, settings_of_env
from .schema import Config

BARE = {"train.agent_func_path": "AgentExecutor", "reward.remote_url": "reward_func"}
"""OpenRLHF's settings that name a file alone, and what is meant in it: `agent.py` is `agent.py:AgentExecutor`."""
OWN = "own"
"""Directory of a run with the copies."""

_FILE = re.compile(r"(?P<path>.+\.py)(?P<attribute>:\w+)?")
"""Without an attribute it is the class of the file that may be meant (env.file); elsewhere `plugins.load` refuses."""
_TABLE = re.compile(r".+\.ya?ml")
_COPY = re.compile(r".+-[0-9a-f]{8}\.py")
_MODULE = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<attribute>\w+)")


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
    """`file.py` of a setting in BARE (an environment's too) with what is looked up in it; whatever else stays."""
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
    """Names of files relative to `directory` become absolute; a module that is found there and nowhere else becomes its
    file.

    Raises nothing, whatever the text is: `plugins.load` says what is wrong with a name.
    """

    def change(name: str) -> str:
        if m := _FILE.fullmatch(name):
            path = directory / os.path.expanduser(m["path"])
            return f"{os.path.normpath(path.absolute())}{m['attribute'] or ''}"
        if _TABLE.fullmatch(name):  # verl's tool configuration: read where it is, beside the modules that it names
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
    """The files of one's own that a configuration names."""
    found: dict[Path, None] = {}

    def note(name: str) -> str:
        if m := _FILE.fullmatch(name):
            found[Path(m["path"])] = None
        return name

    renamed(cfg.model_dump(), note)
    return list(found)


def copies(cfg: Config, directory: Path) -> Iterator[tuple[Path, Path]]:
    """(file, where its copy in `directory` belongs); the name says what is in it: two versions do not meet."""
    for path in files_of(cfg):
        yield path, path if path.parent == directory else directory / _copy_name(path)


def by_content(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dumped configuration in which every file of one's own has the name of its copy, without the directory.

    So a file and the copy that a run made of it are the same, wherever either is, as long as nobody edits one.
    """

    def change(name: str) -> str:
        m = _FILE.fullmatch(name)
        if m is None:
            return name
        path = Path(m["path"])
        if path.parent.name == OWN and _COPY.fullmatch(path.name):
            return f"{path.name}{m['attribute'] or ''}"
        try:
            return f"{_copy_name(path)}{m['attribute'] or ''}"
        except OSError:
            return name

    return renamed(tree, change)


def _copy_name(path: Path) -> str:
    digest = hashlib.blake2b(path.read_bytes(), digest_size=4).hexdigest()
    return f"{path.stem}-{digest}.py"


def freeze(cfg: Config, directory: Path | None = None) -> Config:
    """The configuration with copies of its files in the run's directory (or another) in place of the originals."""
    directory = directory or cfg.run_dir / OWN
    where = {}
    for path, copy in copies(cfg, directory):
        where[str(path)] = str(copy)
        if copy != path:
            directory.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())

    def change(name: str) -> str:
        m = _FILE.fullmatch(name)
        return f"{where[m['path']]}{m['attribute'] or ''}" if m else name

    return Config.model_validate(renamed(cfg.model_dump(), change)) if where else cfg
