"""Find the function or class that a name in the configuration means. All parts of a method are looked up here.

    "math"                     a registered name
    "package.module:Attr"      an attribute of an installed module
    "path/file.py:Attr"        an attribute of the user's file; the path is relative to the recipe that names it, or to
                               the current directory on the command line
    "path/file.py"             the only suitable class of the file; only for kinds that can tell which class is suitable
                               (environments)

A mistake in a user's file is a ConfigError with file, line and what was expected. `cli/preflight.py` loads every
name before a model is loaded, so such a mistake costs nothing but the command. A file is executed once per process, and
again if its text has changed. Only the standard library is imported, because environment servers use this module.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from ..errors import ConfigError, unknown
from .exits import watch_exits
from .failures import Overrun, described, user_code_errors
from .load_watch import LoadWatch
from .neighbours import neighbours, use

MODULE_PREFIX = "openrlhf_tir_own_"
"""Prefix of the names of user files in sys.modules. A digest of path and text follows, so that no two files collide."""

MAX_STAND_INS = 2
"""How often a file is loaded again with a stand-in for a module that it imports."""
SHOWN = 300
"""Characters of a name that a message shows."""
PLAIN: Mapping[Any, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}
"""Annotation -> types of a recipe's value that match it."""
BASE = "env_servers.env"
"""Module of `Env`, the base class of environments, which is not imported here."""
Complaint = Callable[[Any], str | None]
"""Returns what is wrong with a loaded object, as the end of a sentence; None if nothing is."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place where a method plugs in a function or class.

    Attributes:
        kind: What is plugged in, such as "reward".
        setting: The setting that names it.
        shape: How it is called, for messages.
        registry: Registered name -> "module:attribute", which is imported when it is needed.
        complaint: Checks a user's function or class.
        meant: True for a suitable class, if a path may be given without a class: the file must have exactly one.
        adapted: (loaded object, prefix of messages) -> the object that is used: tools of verl and TRL become an
            environment. A file that is not Python is given as its path.
        supplied: Provides a stand-in for a module that a file imports and that is not installed. Returns False if there
            is none.
        others: Suffixes of files besides .py that may be named.
    """

    kind: str
    setting: str
    shape: str
    registry: Mapping[str, str] = field(default_factory=dict)
    complaint: Complaint = lambda thing: None
    meant: Callable[[type], bool] | None = None
    adapted: Callable[[Any, str], Any] | None = None
    supplied: Callable[[str | None], bool] | None = None
    others: tuple[str, ...] = ()

    @property
    def described(self) -> str:
        """A sentence that says what is plugged in here."""
        return f"{'An' if self.kind[0] in 'aeiou' else 'A'} {self.kind} is {self.shape}."


MOVED = {
    "openrlhf_tir.episodes.turns": "openrlhf_tir.rollout.protocols",
    "openrlhf_tir.toy": "miniatures.toy",
    "openrlhf_tir.miniatures": "miniatures",
}
"""Older names of modules that a recipe, or the configuration of an older run, may hold -> the names now."""


def is_own(place: Place, name: str) -> bool:
    """Return True if `name` means a function or class of the user's, not a registered one."""
    return name not in place.registry


def load(place: Place, name: str) -> Any:
    """Return the object that `name` means.

    Raises:
        ConfigError: It cannot be loaded, or it is not what the place needs.
    """
    target = place.registry.get(name, name)
    where, _, attribute = target.rpartition(":")
    prefix = f"{place.setting} = {name if len(name) <= SHOWN else f'{name[:SHOWN]}...'!r}"
    if place.adapted and target.endswith(place.others or ("\0",)):
        if not os.path.isfile(target):
            raise ConfigError(f"{prefix}: there is no file {os.path.abspath(target)[:SHOWN]}.", code="no_file")
        return place.adapted(os.path.abspath(target), prefix)
    if place.meant and target.endswith(".py"):
        where, attribute = target, _the_only(place, _module(place, target, prefix, own=True), prefix)
    if not where or not attribute.isidentifier():
        example = place.kind.replace(" ", "_")
        registered = "one of them, to " if place.registry else ""
        raise unknown(
            place.kind,
            name,
            place.registry,
            f"Set {place.setting} to {registered}'package.module:{example}' or 'path/file.py:{example}'.",
        )
    module = _module(place, current_name(where), prefix, own=is_own(place, name))
    try:
        thing = getattr(module, attribute)
    except AttributeError:
        own = sorted(
            n
            for n, v in vars(module).items()
            if not n.startswith("_") and getattr(v, "__module__", None) == module.__name__
        )
        raise ConfigError(
            f"{prefix}: {module.__file__} has no {attribute!r}. It defines: {', '.join(own) or 'nothing'}.",
            code="user_code",
        ) from None
    if place.adapted:
        thing = place.adapted(thing, prefix)
    if is_own(place, name):
        wrong = (
            f"{attribute} is {type(thing).__name__}, which cannot be called"
            if not callable(thing)
            else place.complaint(thing)
        )
        if wrong:
            raise ConfigError(
                f"{prefix}: {location(thing) or module.__file__}: {wrong}. {place.described}", code="user_code"
            )
    return thing


def current_name(module: str) -> str:
    """Return the name that a module has now, for its older name in MOVED; other text as it is."""
    old = next((old for old in MOVED if f"{module}.".startswith(f"{old}.")), None)
    return MOVED[old] + module[len(old) :] if old else module


def _module(place: Place, where: str, prefix: str, *, own: bool) -> ModuleType:
    """Return the module of a file or package, with stand-ins of the place for missing modules that it imports."""
    for _ in range(MAX_STAND_INS):
        try:
            return _of_file(where, prefix) if where.endswith(".py") else _of_package(where, prefix, own=own)
        except ConfigError as e:
            missing = e.__cause__
            if not (place.supplied and isinstance(missing, ModuleNotFoundError) and place.supplied(missing.name)):
                raise
    return _of_file(where, prefix) if where.endswith(".py") else _of_package(where, prefix, own=own)


def _the_only(place: Place, module: ModuleType, prefix: str) -> str:
    """Return the name of the only suitable class of a file. Raises ConfigError if there is none or more than one."""
    found = [
        n
        for n, v in vars(module).items()
        if inspect.isclass(v) and v.__module__ == module.__name__ and place.meant and place.meant(v)
    ]
    if not found:
        raise ConfigError(f"{prefix}: {module.__file__} defines no {place.kind}. {place.described}", code="user_code")
    if len(found) > 1:
        raise ConfigError(
            f"{prefix}: {module.__file__} defines several: {', '.join(found)}."
            f" Name one of them: '{module.__file__}:{found[0]}'.",
            code="user_code",
        )
    return found[0]


def _of_package(module: str, prefix: str, *, own: bool) -> ModuleType:
    if own:
        watch_exits(module)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        if e.name and (module == e.name or module.startswith(f"{e.name}.")):
            raise ConfigError(
                f"{prefix} cannot be loaded: there is no module {e.name!r} here."
                " Install it, or give the file: 'path/file.py:name'.",
                code="user_code",
            ) from None
        raise _broken(prefix, e, module) from e
    except user_code_errors() as e:
        raise _broken(prefix, e, module) from e


_LOADED: dict[tuple[Path, bytes], ModuleType] = {}
"""Files, with their text, that were executed. Every call of a reward looks its function up here."""


def _execute(path: Path, text: bytes, beside: Mapping[str, bytes]) -> ModuleType:
    linecache.checkcache(str(path))  # it may hold an earlier text of the file
    name = f"{MODULE_PREFIX}{path.stem}_{hashlib.blake2b(bytes(path) + text, digest_size=6).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not named like Python code")
    use(path, beside)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a module up by its name
    watch_exits(name)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


_ENDLESS: dict[tuple[Path, bytes], Overrun] = {}
"""Files, with their text, whose import did not end: nobody wants to wait for that again."""


def _of_file(where: str, prefix: str) -> ModuleType:
    path = Path(os.path.abspath(os.path.expanduser(where)))
    if not os.path.isfile(path):
        raise ConfigError(
            f"{prefix}: there is no file {str(path)[:SHOWN]}. A path is relative to the recipe that names it, on the"
            " command line to the current directory.",
            code="no_file",
        )
    try:
        text = path.read_bytes()
        if (path, text) in _LOADED:
            return _LOADED[path, text]
        beside = neighbours(path)
    except OSError as e:
        raise _broken(prefix, e, str(path)) from e
    try:
        if (path, text) in _ENDLESS:
            raise _ENDLESS[path, text]
        with LoadWatch(str(path), prefix):
            _LOADED[path, text] = _execute(path, text, beside)
    except user_code_errors() as e:
        if isinstance(e, Overrun):
            _ENDLESS[path, text] = e
        raise _broken(prefix, e, str(path)) from e
    return _LOADED[path, text]


def _broken(prefix: str, e: BaseException, module: str) -> ConfigError:
    """Return the error for a module that could not be executed, with the last line in it that was reached."""
    if isinstance(e, SyntaxError):
        line = f"{e.filename}:{e.lineno}"
        return ConfigError(
            f"{prefix} cannot be loaded: {line}: {type(e).__name__}: {e.msg}. Correct that line.", code="user_code"
        )
    remedy = "Correct that line, or install what it imports."
    if isinstance(e, ImportError) and str(e.name).startswith("openrlhf_tir."):
        remedy = "Correct that line: docs/migration.md lists modules of openrlhf_tir that have moved."
    return ConfigError(
        f"{prefix} cannot be loaded: {raised_at(e, module) or module}: {described(e)}. {remedy}",
        code="user_code",
    )


def raised_at(e: BaseException, inside: str | None) -> str | None:
    """Return "file:line" where `e` was raised.

    It is the last frame in the file `inside` if there is one, and otherwise the last frame outside of this module and
    of Python's import system; None if there is no such frame. Of a group of errors the first one counts, if it was
    raised in `inside`.
    """
    if isinstance(e, BaseExceptionGroup):
        first = raised_at(e.exceptions[0], inside)
        if first is not None and first.rpartition(":")[0] == inside:
            return first
    frames = [f for f in traceback.extract_tb(e.__traceback__) if not f.filename.startswith("<")]
    mine = [f for f in frames if f.filename == inside] or [
        f for f in frames if f.filename != __file__ and "importlib" not in f.filename
    ]
    return f"{mine[-1].filename}:{mine[-1].lineno}" if mine else None


def source_file(thing: Any) -> str | None:
    """Return the file that defines a function or class; None if it has none."""
    try:
        return inspect.getsourcefile(inspect.unwrap(thing))
    except TypeError:
        return None


def location(thing: Any) -> str | None:
    """Return "file:line" of the definition of a function or class; None if it has none."""
    thing = inspect.unwrap(thing) if callable(thing) else thing
    try:
        return f"{inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]}"
    except (TypeError, OSError):
        return None


def takes(positional: int, *keywords: str) -> Complaint:
    """Return the check that an object can be called with certain arguments.

    Args:
        positional: Number of positional arguments.
        keywords: Names of keyword arguments.
    """

    def complaint(thing: Any) -> str | None:
        of_object = None if inspect.isclass(thing) else getattr(type(thing), "__call__", None)  # noqa: B004
        if inspect.iscoroutinefunction(thing) or inspect.iscoroutinefunction(of_object):
            return (
                f"{getattr(thing, '__name__', type(thing).__name__)} is a coroutine function, which is not supported"
                " here: write `def`"
            )
        try:
            signature = inspect.signature(thing)
        except (TypeError, ValueError):
            return None  # a builtin function, whose signature is not known
        try:
            signature.bind(*range(positional), **dict.fromkeys(keywords))
        except TypeError as e:
            name = getattr(thing, "__name__", type(thing).__name__)
            return f"{name}{signature} cannot be called as it would be: {e}"
        return None

    return complaint


def _environment_complaint(cls: Any) -> str | None:
    """Return what is wrong with an environment's class; None if nothing is."""
    if not inspect.isclass(cls):
        return f"{cls!r} is not a class"
    for name, given in ("step", ("action", 1.0)), ("reset", ({}, 0)), ("close", ()):
        method = getattr(cls, name, None)
        if not inspect.iscoroutinefunction(method) or (name == "step" and method.__module__ == BASE):
            return f"{cls.__name__} has no `async def {name}`"
        try:
            inspect.signature(method).bind(None, *given)
        except TypeError as e:
            return f"{cls.__name__}.{name}{inspect.signature(method)} cannot be called as it would be: {e}"
    return None


def wrong_keywords(cls: Any, given: Mapping[str, Any]) -> str | None:
    """Return why a class cannot be created with these keyword arguments; None if it can.

    An argument may be unknown, missing, or not of the plain type that the constructor's annotation gives.
    """
    try:
        signature = inspect.signature(cls)
    except (TypeError, ValueError):
        return None  # its signature is not known
    try:
        signature.bind(**given)
    except TypeError as e:
        return str(e)
    try:
        hints = get_type_hints(cls.__init__)
    except Exception:  # names that only a type checker knows
        return None
    for name, value in given.items():
        hint: Any = hints.get(name, Any)
        if hint in PLAIN and (not isinstance(value, PLAIN[hint]) or (isinstance(value, bool) and hint is not bool)):
            return f"{name} = {value!r} is {type(value).__name__}, not {hint.__name__}"
    return None


def _adapted(thing: Any, prefix: str) -> Any:
    """Return an environment class made of tools of verl's or TRL's; other objects as they are."""
    return importlib.import_module("env_servers.own.adapt").environment_of(thing, prefix)


def _stand_in(missing: str | None) -> bool:
    """Provide a stand-in for verl's classes of tools, if a file imports them and verl is not installed."""
    return bool(importlib.import_module("env_servers.own.verl_stand_in").install(missing))


ENVIRONMENT = Place(
    "environment",
    "env.file",
    "a class with async reset(task, seed) -> str, async step(action, deadline_s) -> Step and async close(), best"
    " derived from env_servers.env.Env, which has all but step; or tools: functions as TRL's, classes or a YAML file"
    " as verl's",
    complaint=_environment_complaint,
    meant=lambda cls: any(b.__name__ == "Env" and b.__module__ == BASE for b in cls.__mro__),
    adapted=_adapted,
    supplied=_stand_in,
    others=(".yaml", ".yml"),
)
"""The place of environments. It is here because both the trainer's checks and env_servers/own look environments up."""
