"""Fresh instances of the package's classes, calls on them, and the results as the package renders them.

A mistake of the model is a result like any other, as in the package: "Error during execution: ..." for an unknown
function, arguments that it does not take, and whatever else it raises. Nothing is evaluated: a call has a name and
values. Source: bfcl_eval, eval_checker/multi_turn_eval/multi_turn_utils.py (execute_multi_turn_func_call).
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
"""Beginning of the result of a failed call."""
NOT_ALLOWED = ("kill", "exit", "quit", "remove", "unlink", "popen", "Popen", "run")
"""Names that the package does not call."""


class Scene(NamedTuple):
    """The initial state of a task, and its true calls by turn."""

    classes: Sequence[str]
    config: Mapping[str, Any]
    long_context: bool
    gold: Sequence[Sequence[Call]]


class CallResult(NamedTuple):
    """Result of one call.

    Attributes:
        result: The result as text.
        error: unknown_function, bad_call or refused; None if the call succeeded.
        key: Name and arguments with defaults filled in; None if it could not be bound to a function.
    """

    result: str
    error: str | None
    key: str | None


class World:
    """The instances of a task."""

    def __init__(self, scene: Scene) -> None:
        """Create the instances. Raises ValueError if a class does not accept its part of initial_config."""
        from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING, STATELESS_CLASSES

        self.instances: dict[str, Any] = {}
        self._methods: dict[str, Callable[..., Any]] = {}
        for name in scene.classes:
            instance = getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name)()
            if name not in STATELESS_CLASSES:
                try:
                    instance._load_scenario(copy.deepcopy(scene.config.get(name, {})), long_context=scene.long_context)
                except Exception as e:  # the package's code raises anything for malformed data
                    raise ValueError(
                        f"initial_config: {name} cannot be made of it: {type(e).__name__}: {e}. Correct the row."
                    ) from None
            self.instances[name] = instance
            self._methods |= {
                method_name: method
                for method_name, method in inspect.getmembers(instance, predicate=inspect.ismethod)
                if not method_name.startswith("_")
            }

    def call(self, call: Call) -> CallResult:
        """Call a function and return its result."""
        method = self._methods.get(call.name)
        if call.name in NOT_ALLOWED:
            return CallResult(f"{FAILED}Function call {call.name} is not allowed.", "unknown_function", None)
        if method is None:
            return CallResult(f"{FAILED}name {call.name!r} is not defined", "unknown_function", None)
        values, arguments = copy.deepcopy((call.values, call.arguments))
        bound = _bound(method, values, arguments)
        key = None if bound is None else f"{call.name} {json.dumps(bound.arguments, sort_keys=True, default=str)}"
        try:
            value = method(*values, **arguments) if bound is None else method(*bound.args, **bound.kwargs)
            refused = isinstance(value, dict) and "error" in value
            return CallResult(_rendered(value), "refused" if refused else None, key)
        except Exception as e:  # as in the package, the model reads whatever a method raises
            return CallResult(f"{FAILED}{e}", "bad_call", key)


def _bound(
    method: Callable[..., Any], values: Sequence[Any], arguments: Mapping[str, Any]
) -> inspect.BoundArguments | None:
    """Bind arguments to a method's parameters; None if it does not take them.

    Defaults are copied: `mention` appends to the `[]` that is `post_tweet`'s default, with which later tweets would
    begin.
    """
    try:
        bound = inspect.signature(method).bind(*values, **arguments)
    except TypeError:
        return None
    bound.apply_defaults()
    bound.arguments.update(copy.deepcopy(bound.arguments))
    return bound


def _rendered(value: Any) -> str:
    """Return a result as text, as the package does."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        try:
            return json.dumps(value)
        except Exception:  # as in the package: it holds an object, or itself
            return str(value)
    return str(value)


def differing(world: World, gold: World) -> tuple[int, int]:
    """Return the number of public attributes of the gold's instances, and of those that differ in `world`."""
    total = 0
    different = 0
    for class_name, instance in gold.instances.items():
        for name in vars(instance):
            if not name.startswith("_"):
                total += 1
                value = getattr(world.instances[class_name], name, None)
                different += not _equal(value, getattr(instance, name))
    return total, different


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except RecursionError:  # a directory was moved into itself, which the true calls never do
        return False
