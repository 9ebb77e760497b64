"""Tools: typed methods -> JSON schemas -> checked calls. A domain is a plain class; pydantic reads its signatures.

    class Files(Domain):
        @tool
        def remove(self, path: str) -> None:
            \"\"\"Delete a file or an empty directory.\"\"\"

`Files.tools()["remove"].schema` is what a model is offered, and `Files(state).call("remove", {"path": "a"})` runs it.
What a model gets wrong (a name that is not offered, an argument of another type, a path that is not there) is a
ToolError, told to it as an observation."""

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
    """A call that cannot be carried out; its text is for the model."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One function: `schema` is OpenAI's {"name", "description", "parameters"}; `arguments` checks a call's."""

    name: str
    schema: dict[str, Any]
    arguments: type[BaseModel]

    def checked(self, given: Any) -> dict[str, Any]:
        """Arguments with defaults. Types are strict, but a whole number may be a fraction. Raises ToolError."""
        if not isinstance(given, dict):
            raise ToolError(f"{self.name}: arguments are {type(given).__name__}, not an object of names and values.")
        try:
            checked = dict(self.arguments.model_validate(given, strict=True))
        except ValidationError as e:
            raise ToolError(
                f"{self.name}: " + "; ".join(f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in e.errors()) + "."
            ) from None
        # what is worked out of a longer one may have more digits than Python writes
        if long := [k for k, v in checked.items() if type(v) is int and v.bit_length() > WHOLE_BITS]:
            raise ToolError(f"{self.name}: {', '.join(long)}: Input should be a whole number of at most 64 bits.")
        return checked


def tool(method: F) -> F:
    """Offer `method` to the model. Its first docstring paragraph is the description; every parameter needs a type."""
    method.__tool__ = True  # type: ignore[attr-defined]
    return method


def _tool_of(name: str, method: Callable[..., Any]) -> Tool:
    hints = get_type_hints(method)
    given = [p for p in inspect.signature(method).parameters.values() if p.name != "self"]
    fields: dict[str, Any] = {p.name: (hints[p.name], ... if p.default is p.empty else p.default) for p in given}
    model = create_model(name, __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **fields)
    parameters = _plain(model.model_json_schema())
    parameters.setdefault("required", [])
    description = " ".join((inspect.getdoc(method) or "").partition("\n\n")[0].split())
    return Tool(name, {"name": name, "description": description, "parameters": parameters}, model)


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Without the titles that pydantic adds, which only cost tokens."""
    kept = {k: v for k, v in schema.items() if k != "title" and not (k == "additionalProperties" and v is False)}
    if "properties" in kept:
        kept["properties"] = {name: _plain(p) for name, p in kept["properties"].items()}
    return kept


class Domain:
    """A small world: `state` is JSON, and its top-level names are the variables that are compared with the gold's."""

    name: ClassVar[str]
    _tools: ClassVar[dict[str, Tool]]

    def __init_subclass__(cls) -> None:
        cls._tools = {n: _tool_of(n, m) for n, m in vars(cls).items() if getattr(m, "__tool__", False)}

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = copy.deepcopy(state)

    @classmethod
    def initial(cls, rng: random.Random) -> dict[str, Any]:
        """The state that an episode starts with."""
        raise NotImplementedError

    @classmethod
    def tools(cls) -> dict[str, Tool]:
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
    """Raises ToolError for a value that is nested deeper than MAX_DEPTH, larger than MAX_STATE_CHARS, or no JSON."""
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
    """Return the values inside of a list or an object."""
    return node.values() if isinstance(node, dict) else node if isinstance(node, list | tuple) else ()


class World:
    """Several domains side by side; a function belongs to one of them."""

    def __init__(self, domains: list[Domain], hidden: frozenset[str] = frozenset()) -> None:
        self.domains = domains
        self.hidden = hidden
        self.owner = {name: d for d in domains for name in d.tools()}

    def offered(self) -> Iterator[dict[str, Any]]:
        """The schemas of what may be called."""
        return (d.tools()[n].schema for d in self.domains for n in d.tools() if n not in self.hidden)

    def call(self, name: str, arguments: Any) -> Any:
        """Raises ToolError."""
        if name not in self.owner or name in self.hidden:
            raise ToolError(f"There is no function {name!r}.")
        return self.owner[name].call(name, arguments)

    def state(self) -> dict[str, Any]:
        """Variable -> value, over all domains."""
        return {f"{d.name}.{k}": v for d in self.domains for k, v in d.state.items()}
