"""World: fresh instances of the package's classes, calls on them, and their results as the package renders them.

What a model gets wrong is a result like any other, as in the package: "Error during execution: ..." for a function that
is not there, arguments that it does not take, and whatever else it raises. Nothing is evaluated here: a call has a name
and values.

Source: bfcl_eval, eval_checker/multi_turn_eval/multi_turn_utils.py (execute_multi_turn_func_call).
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .task import Call

FAILED = "Error during execution: "
NOT_ALLOWED = ("kill", "exit", "quit", "remove", "unlink", "popen", "Popen", "run")
"""Names that the package does not call."""


class Scene(NamedTuple):
    """What a task begins with, and its true calls by turn."""

    classes: Sequence[str]
    config: Mapping[str, Any]
    long_context: bool
    gold: Sequence[Sequence[Call]]


class Made(NamedTuple):
    """One call: its result as text, `error` (unknown_function, bad_call, refused) where it went wrong, and `key`: name
    and arguments, defaults filled in."""

    result: str
    error: str | None
    key: str | None


class World:
    def __init__(self, scene: Scene) -> None:
        """Raises ValueError where a class does not take its part of initial_config."""
        from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING, STATELESS_CLASSES

        self.instances: dict[str, Any] = {}
        self._methods: dict[str, Callable[..., Any]] = {}
        for name in scene.classes:
            instance = getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name)()
            if name not in STATELESS_CLASSES:
                try:
                    instance._load_scenario(copy.deepcopy(scene.config.get(name, {})), long_context=scene.long_context)
                except Exception as e:  # whatever the package's code raises at data of another form
                    raise ValueError(
                        f"initial_config: {name} cannot be made of it: {type(e).__name__}: {e}. Correct the row."
                    ) from None
            self.instances[name] = instance
            self._methods |= {
                n: m for n, m in inspect.getmembers(instance, predicate=inspect.ismethod) if not n.startswith("_")
            }

    def call(self, call: Call) -> Made:
        method = self._methods.get(call.name)
        if call.name in NOT_ALLOWED:
            return Made(f"{FAILED}Function call {call.name} is not allowed.", "unknown_function", None)
        if method is None:
            return Made(f"{FAILED}name {call.name!r} is not defined", "unknown_function", None)
        values, arguments = copy.deepcopy((call.values, call.arguments))
        bound = _bound(method, values, arguments)
        key = None if bound is None else f"{call.name} {json.dumps(bound.arguments, sort_keys=True, default=str)}"
        try:
            value = method(*values, **arguments) if bound is None else method(*bound.args, **bound.kwargs)
            refused = isinstance(value, dict) and "error" in value
            return Made(_rendered(value), "refused" if refused else None, key)
        except Exception as e:  # as the package: whatever a method raises at its arguments is the model's to read
            return Made(f"{FAILED}{e}", "bad_call", key)


def _bound(
    method: Callable[..., Any], values: Sequence[Any], arguments: Mapping[str, Any]
) -> inspect.BoundArguments | None:
    """None for arguments that it does not take. Defaults are copies: `mention` adds to what `post_tweet` has `[]` for,
    which later tweets would begin with."""
    try:
        bound = inspect.signature(method).bind(*values, **arguments)
    except TypeError:
        return None
    bound.apply_defaults()
    bound.arguments.update(copy.deepcopy(bound.arguments))
    return bound


def _rendered(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        try:
            return json.dumps(value)
        except Exception:  # as the package: it holds an object, or itself
            return str(value)
    return str(value)


def differing(world: World, gold: World) -> tuple[int, int]:
    """(public attributes of the gold's instances, those of them that differ in `world`)."""
    pairs = [
        (world.instances[c], instance, name)
        for c, instance in gold.instances.items()
        for name in vars(instance)
        if not name.startswith("_")
    ]
    return len(pairs), sum(not _equal(getattr(ours, name, None), getattr(theirs, name)) for ours, theirs, name in pairs)


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except RecursionError:  # a directory that was moved into itself: the gold has none
        return False
