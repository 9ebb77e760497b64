"""Turn typed methods into JSON schemas and checked calls. A domain is a plain class; pydantic reads its signatures.

    class Files(Domain):
        @tool
        def remove(self, path: str) -> None:
            \"\"\"Delete a file or an empty directory.\"\"\"

`Files.tools()["remove"].schema` is what a model is offered, and `Files(state).call("remove", {"path": "a"})` runs it.
A mistake of the model (an unknown name, an argument of another type, a path that does not exist) is a ToolError, which
the model reads as an observation.
"""

from __future__ import annotations

import copy
import inspect
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

F = TypeVar("F", bound=Callable[..., Any])
WHOLE_BITS = 63
"""Bits of the longest whole number that a call may give, without its sign."""

MAX_DEPTH = 64
"""Levels of lists and objects in a domain's state and in a result; copying a deeper one would exhaust the stack."""
MAX_STATE_CHARS = 4 << 20
"""Characters of a domain's state as JSON: a model that copies a file again and again must not fill the memory."""


class ToolError(Exception):
    """Raised when a call cannot be carried out. Its text is shown to the model."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One function of a domain.

    Attributes:
        name: Its name.
        schema: What the model is offered, in OpenAI's form: {"name", "description", "parameters"}.
        arguments: Checks the arguments of a call.
    """

    name: str
    schema: dict[str, Any]
    arguments: type[BaseModel]

    def checked(self, arguments: Any) -> dict[str, Any]:
        """Return the arguments of a call with defaults filled in.

        Types are checked strictly, except that a whole number is accepted for a float.

        Raises:
            ToolError: The arguments are wrong.
        """
        if not isinstance(arguments, dict):
            raise ToolError(
                f"{self.name}: arguments are {type(arguments).__name__}, not an object of names and values."
            )
        try:
            checked = dict(self.arguments.model_validate(arguments, strict=True))
        except ValidationError as e:
            errors = [f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in e.errors()]
            raise ToolError(f"{self.name}: {'; '.join(errors)}.") from None
        # a result computed from a longer number may have more digits than Python can write
        too_long = [name for name, value in checked.items() if type(value) is int and value.bit_length() > WHOLE_BITS]
        if too_long:
            raise ToolError(f"{self.name}: {', '.join(too_long)}: Input should be a whole number of at most 64 bits.")
        return checked


def tool(method: F) -> F:
    """Offer a method to the model. The first paragraph of its docstring is the description; every parameter needs a
    type."""
    method.__tool__ = True  # type: ignore[attr-defined]
    return method


def _tool_of(name: str, method: Callable[..., Any]) -> Tool:
    """Return the tool of a method, from its signature and docstring."""
    hints = get_type_hints(method)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(method).parameters.values():
        if parameter.name != "self":
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (hints[parameter.name], default)
    model = create_model(name, __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **fields)
    parameters = _without_titles(model.model_json_schema())
    parameters.setdefault("required", [])
    description = " ".join((inspect.getdoc(method) or "").partition("\n\n")[0].split())
    return Tool(name, {"name": name, "description": description, "parameters": parameters}, model)


def _without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the titles that pydantic adds, which only cost tokens."""
    plain = {
        key: value
        for key, value in schema.items()
        if key != "title" and not (key == "additionalProperties" and value is False)
    }
    if "properties" in plain:
        plain["properties"] = {name: _without_titles(part) for name, part in plain["properties"].items()}
    return plain


class Domain:
    """A small world with functions. `state` is JSON; its top-level names are the variables that are compared with the
    gold's."""

    name: ClassVar[str]
    _tools: ClassVar[dict[str, Tool]]

    def __init_subclass__(cls) -> None:
        cls._tools = {
            name: _tool_of(name, method) for name, method in vars(cls).items() if getattr(method, "__tool__", False)
        }

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = copy.deepcopy(state)

    @classmethod
    def initial(cls, rng: random.Random) -> dict[str, Any]:
        """Return a random initial state of an episode."""
        raise NotImplementedError

    @classmethod
    def tools(cls) -> dict[str, Tool]:
        """Return the functions by name."""
        return cls._tools

    def call(self, name: str, arguments: Any) -> Any:
        """Return what the function returns, as JSON. The state is as it was if the call fails.

        Raises:
            ToolError: The call cannot be carried out, or would make a state that nobody could copy or send: nested too
                deep (a directory in a directory, call after call), too large, or with a number that is not finite.
        """
        checked = self._tools[name].checked(arguments)
        before = copy.deepcopy(self.state)
        try:
            result = getattr(self, name)(**checked)
            _check_size(name, self.state)
            _check_size(name, result)
        except ToolError:
            self.state = before
            raise
        except (ArithmeticError, RecursionError, MemoryError, UnicodeError) as e:
            # These come from the values that the model chose, not from a bug in a function's own lines.
            self.state = before
            raise ToolError(f"{name}: {type(e).__name__}: {e}.") from None
        return result


def _check_size(name: str, value: Any) -> None:
    """Raise ToolError for a value that is nested deeper than MAX_DEPTH, larger than MAX_STATE_CHARS, or not JSON."""
    level: list[Any] = [value]
    depth = 0
    while level := [part for node in level for part in _parts(node)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise ToolError(f"{name}: this would be nested deeper than {MAX_DEPTH} levels.")
    try:
        size = len(json.dumps(value, allow_nan=False))
    except ValueError as e:
        raise ToolError(f"{name}: {e}.") from None
    if size > MAX_STATE_CHARS:
        raise ToolError(f"{name}: this would take more than {MAX_STATE_CHARS} characters.")


def _parts(node: Any) -> Iterable[Any]:
    """Return the values in a list or an object."""
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, list | tuple) else ()


class World:
    """Several domains side by side. A function belongs to one of them.

    Attributes:
        hidden: Functions that are not offered.
        owner: The domain of each function.
    """

    def __init__(self, domains: list[Domain], hidden: frozenset[str] = frozenset()) -> None:
        self.domains = domains
        self.hidden = hidden
        self.owner = {name: domain for domain in domains for name in domain.tools()}

    def offered(self) -> Iterator[dict[str, Any]]:
        """Yield the schemas of the functions that may be called."""
        for domain in self.domains:
            for name, offered_tool in domain.tools().items():
                if name not in self.hidden:
                    yield offered_tool.schema

    def call(self, name: str, arguments: Any) -> Any:
        """Call a function and return its result. Raises ToolError."""
        if name not in self.owner or name in self.hidden:
            raise ToolError(f"There is no function {name!r}.")
        return self.owner[name].call(name, arguments)

    def state(self) -> dict[str, Any]:
        """Return the values of all variables, by "domain.variable"."""
        return {f"{domain.name}.{name}": value for domain in self.domains for name, value in domain.state.items()}
