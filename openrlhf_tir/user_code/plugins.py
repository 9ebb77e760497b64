"""Plugins: a name in a configuration -> the function or class behind it. The one way in which anything of a method is
looked up.

    "math"                     a registered name
    "package.module:Attr"      what `import package.module` finds
    "path/file.py:Attr"        a file of one's own; relative to the recipe that names it, else to the current directory
    "path/file.py"             the one class of the file that can be meant; only where a place says which can (an
                               environment)

A mistake in a file of one's own is a ConfigError with file, line and what was expected. `commands/preflight.py` loads
every name before a model is loaded, so such a mistake ends nothing but the command. Standard library only; a file is
executed once per process, and again when its text has changed.
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
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from ..errors import ConfigError, unknown
from .failures import Overrun
from .load_watch import LoadWatch

MODULE_PREFIX = "openrlhf_tir_own_"
"""Files of one's own are in sys.modules under this prefix and a digest of path and text, so no two meet."""

MOST_SUPPLIED = 2
"""How often a file is loaded again with a stand-in for a module that it imports."""
SHOWN = 300
"""Characters of a name that a message shows."""
PLAIN: Mapping[Any, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}
"""Annotations that a value of a recipe can be held against, and what fits them."""
BASE = "env_servers.env"
"""The module of `Env`, the base class of environments, which is not imported here."""
Complaint = Callable[[Any], str | None]
"""What is wrong with a loaded object, as the end of a sentence; None when nothing is."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something of a method plugs in: its kind, the setting that names it, how it is called, those registered."""

    kind: str
    setting: str
    shape: str
    registry: Mapping[str, str] = field(default_factory=dict)
    """name -> "module:attribute", imported when it is asked for."""
    complaint: Complaint = lambda thing: None
    meant: Callable[[type], bool] | None = None
    """Which class of a file is meant where its path stands alone, if that can be: then there has to be one only."""
    adapted: Callable[[Any, str], Any] | None = None
    """(what a name stands for, the setting) -> what it is used as: tools of verl and TRL become an environment. What is
    not a Python file is given as its path."""
    supplied: Callable[[str | None], bool] | None = None
    """Puts a module that a file imports and that is not installed in its place; False if it cannot."""
    others: tuple[str, ...] = ()
    """Suffixes of files besides .py that may be named."""

    @property
    def described(self) -> str:
        """One sentence that says what such a thing is."""
        return f"{'An' if self.kind[0] in 'aeiou' else 'A'} {self.kind} is {self.shape}."


def is_own(place: Place, name: str) -> bool:
    """Whether `name` is a function or class of the user's, not one of the registered."""
    return name not in place.registry


def load(place: Place, name: str) -> Any:
    """The object behind `name`. Raises ConfigError with fact, value and remedy."""
    target = place.registry.get(name, name)
    where, _, attribute = target.rpartition(":")
    said = f"{place.setting} = {name if len(name) <= SHOWN else f'{name[:SHOWN]}...'!r}"
    if place.adapted and target.endswith(place.others or ("\0",)):
        if not os.path.isfile(target):
            raise ConfigError(f"{said}: there is no file {os.path.abspath(target)[:SHOWN]}.")
        return place.adapted(os.path.abspath(target), said)
    if place.meant and target.endswith(".py"):
        where, attribute = target, _the_only(place, _module(place, target, said), said)
    if not where or not attribute.isidentifier():
        example = place.kind.replace(" ", "_")
        registered = "one of them, to " if place.registry else ""
        raise unknown(
            place.kind,
            name,
            place.registry,
            f"Set {place.setting} to {registered}'package.module:{example}' or 'path/file.py:{example}'.",
        )
    module = _module(place, where, said)
    try:
        thing = getattr(module, attribute)
    except AttributeError:
        own = sorted(
            n
            for n, v in vars(module).items()
            if not n.startswith("_") and getattr(v, "__module__", None) == module.__name__
        )
        raise ConfigError(
            f"{said}: {module.__file__} has no {attribute!r}. It defines: {', '.join(own) or 'nothing'}."
        ) from None
    if place.adapted:
        thing = place.adapted(thing, said)
    if is_own(place, name):
        wrong = (
            f"{attribute} is {type(thing).__name__}, which cannot be called"
            if not callable(thing)
            else place.complaint(thing)
        )
        if wrong:
            raise ConfigError(f"{said}: {location(thing) or module.__file__}: {wrong}. {place.described}")
    return thing


def _module(place: Place, where: str, said: str) -> ModuleType:
    """The module of a file or of a package, with a stand-in for what it imports and what `place` can supply."""
    for _ in range(MOST_SUPPLIED):
        try:
            return _of_file(where, said) if where.endswith(".py") else _of_package(where, said)
        except ConfigError as e:
            missing = e.__cause__
            if not (place.supplied and isinstance(missing, ModuleNotFoundError) and place.supplied(missing.name)):
                raise
    return _of_file(where, said) if where.endswith(".py") else _of_package(where, said)


def _the_only(place: Place, module: ModuleType, said: str) -> str:
    """The name of the one class that the file defines and that can be meant. ConfigError for none, or several."""
    found = [
        n
        for n, v in vars(module).items()
        if inspect.isclass(v) and v.__module__ == module.__name__ and place.meant and place.meant(v)
    ]
    if not found:
        raise ConfigError(f"{said}: {module.__file__} defines no {place.kind}. {place.described}")
    if len(found) > 1:
        raise ConfigError(
            f"{said}: {module.__file__} defines several: {', '.join(found)}."
            f" Name one of them: '{module.__file__}:{found[0]}'."
        )
    return found[0]


def _of_package(module: str, said: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        if e.name and (module == e.name or module.startswith(f"{e.name}.")):
            raise ConfigError(
                f"{said} cannot be loaded: there is no module {e.name!r} here."
                " Install it, or give the file: 'path/file.py:name'."
            ) from None
        raise _broken(said, e, module) from e
    except Exception as e:
        raise _broken(said, e, module) from e


@cache
def _module_of(path: Path, text: bytes) -> ModuleType:
    linecache.checkcache(str(path))  # an earlier text may be remembered
    name = f"{MODULE_PREFIX}{path.stem}_{hashlib.blake2b(bytes(path) + text, digest_size=6).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not named like Python code")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a module up by its name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _of_file(where: str, said: str) -> ModuleType:
    path = Path(os.path.abspath(os.path.expanduser(where)))
    if not os.path.isfile(path):
        raise ConfigError(
            f"{said}: there is no file {str(path)[:SHOWN]}. A path is relative to the recipe that names it, on the"
            " command line to the current directory."
        )
    try:
        with LoadWatch(str(path), said):
            return _module_of(path, path.read_bytes())
    except (Exception, SystemExit, Overrun) as e:
        raise _broken(said, e, str(path)) from e


def _broken(said: str, e: BaseException, module: str) -> ConfigError:
    """A file that could not be executed: the line in it that was reached last."""
    if isinstance(e, SyntaxError):
        at = f"{e.filename}:{e.lineno}"
        return ConfigError(f"{said} cannot be loaded: {at}: {type(e).__name__}: {e.msg}. Correct that line.")
    return ConfigError(
        f"{said} cannot be loaded: {raised_at(e, module) or module}: {type(e).__name__}: {e}."
        " Correct that line, or install what it imports."
    )


def raised_at(e: BaseException, inside: str | None = None) -> str | None:
    """ "file:line" where `e` was raised: the last frame in the file `inside` if there is one, else the last that is
    neither ours nor Python's."""
    frames = [f for f in traceback.extract_tb(e.__traceback__) if not f.filename.startswith("<")]
    mine = [f for f in frames if f.filename == inside] or [
        f for f in frames if f.filename != __file__ and "importlib" not in f.filename
    ]
    return f"{mine[-1].filename}:{mine[-1].lineno}" if mine else None


def source_file(thing: Any) -> str | None:
    try:
        return inspect.getsourcefile(inspect.unwrap(thing))
    except TypeError:
        return None


def location(thing: Any) -> str | None:
    """ "file:line" of a function's or class's definition; None for what has none."""
    thing = inspect.unwrap(thing) if callable(thing) else thing
    try:
        return f"{inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]}"
    except (TypeError, OSError):
        return None


def takes(positional: int, *keywords: str, optional: tuple[str, ...] = ()) -> Complaint:
    """A complaint about what cannot be called with so many positional arguments and these keywords. `optional`: given
    to those that have them."""

    def complaint(thing: Any) -> str | None:
        of_object = None if inspect.isclass(thing) else getattr(type(thing), "__call__", None)  # noqa: B004
        if inspect.iscoroutinefunction(thing) or inspect.iscoroutinefunction(of_object):
            return (
                f"{getattr(thing, '__name__', type(thing).__name__)} is `async def`, and nobody awaits it: write `def`"
            )
        try:
            signature = inspect.signature(thing)
        except (TypeError, ValueError):
            return None  # a builtin: it cannot be asked
        try:
            signature.bind(
                *range(positional), **dict.fromkeys([*keywords, *(k for k in optional if k in signature.parameters)])
            )
        except TypeError as e:
            name = getattr(thing, "__name__", type(thing).__name__)
            return f"{name}{signature} cannot be called as it would be: {e}"
        return None

    return complaint


def _no_environment(cls: Any) -> str | None:
    if not inspect.isclass(cls):
        return f"{cls!r} is no class"
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
    """Why a class cannot be made with these keywords: one too many, one that is missing, one that is not of the plain
    type that it is annotated with."""
    try:
        signature = inspect.signature(cls)
    except (TypeError, ValueError):
        return None  # it cannot be asked
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


def _adapted(thing: Any, said: str) -> Any:
    """An environment class made of tools of verl's or TRL's; other things as they are."""
    return importlib.import_module("env_servers.own.adapt").environment_of(thing, said)


def _stand_in(missing: str | None) -> bool:
    """The stand-in for verl's classes of tools, where a file imports them and there is no verl."""
    return bool(importlib.import_module("env_servers.own.verl_stand_in").install(missing))


ENVIRONMENT = Place(
    "environment",
    "env.file",
    "a class with async reset(task, seed) -> str, async step(action, deadline_s) -> Step and async close(), best"
    " derived from env_servers.env.Env, which has all but step; or tools: functions as TRL's, classes or a YAML file"
    " as verl's",
    complaint=_no_environment,
    meant=lambda cls: any(b.__name__ == "Env" and b.__module__ == BASE for b in cls.__mro__),
    adapted=_adapted,
    supplied=_stand_in,
    others=(".yaml", ".yml"),
)
"""Here because both look it up: the trainer's checks, and the server that a run starts for it (env_servers/own)."""
