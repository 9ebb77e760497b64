"""Tools written for verl and TRL -> an environment class, as `env.file` wants one.

    a function, or a list of them      TRL's `tools`: type hints and a Google docstring
    a class with `reset` and methods   TRL's `environment_factory`: each public method is a tool
    a class with create and execute    verl's BaseTool
    a YAML file                        verl's tool configuration: class_name, config, tool_schema

The action is a JSON list of calls, [{"name": ..., "arguments": {...}}], as that of every tool environment.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from env_servers.defects import described
from env_servers.env import Env
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.user_code.plugins import source_file

from .foreign_tools import Tool, ToolEnv, TrlEnv, VerlTool
from .verl_stand_in import OpenAIFunctionToolSchema, install

YAML = (".yaml", ".yml")


def environment_of(thing: Any, named: str) -> Any:
    """Return an environment class made of `thing`, or `thing` itself where it is none of the forms above.

    Args:
        thing: What `env.file` names; the path of a YAML file as text.
        named: The setting and its value, for messages.

    Raises:
        ConfigError: It is one of these forms, and cannot be used.
    """
    if isinstance(thing, str) and thing.endswith(YAML):
        return _environment(_tools_of_yaml(Path(thing), named), Path(thing).stem)
    if inspect.isfunction(thing) or inspect.isbuiltin(thing):
        return _environment([_function(thing, named)], thing.__name__)
    if isinstance(thing, list | tuple) and thing:
        return _environment([_one(part, named) for part in thing], "tools")
    if inspect.isclass(thing) and _is_verl(thing):
        return _environment([_verl(thing, {}, None, named)], thing.__name__)
    if inspect.isclass(thing) and not _is_ours(thing) and _is_trl(thing):
        return _trl_environment(thing, named)
    return thing


def _one(part: Any, named: str) -> Callable[[], Tool]:
    if inspect.isclass(part) and _is_verl(part):
        return _verl(part, {}, None, named)
    if callable(part) and not inspect.isclass(part):
        return _function(part, named)
    raise ConfigError(f"{named}: {part!r} is no tool: a function, or a class of verl's (create, execute, release).")


def _is_ours(cls: type) -> bool:
    return issubclass(cls, Env) or inspect.iscoroutinefunction(getattr(cls, "step", None))


def _is_verl(cls: type) -> bool:
    return all(callable(getattr(cls, name, None)) for name in ("create", "execute", "release"))


def _is_trl(cls: type) -> bool:
    reset = getattr(cls, "reset", None)
    return callable(reset) and not inspect.iscoroutinefunction(reset) and bool(_methods(cls))


def _methods(cls: type) -> list[str]:
    """The names of a class's tools: its public methods besides reset and get_reward."""
    return [
        name
        for name, member in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and name not in ("reset", "get_reward", "close")
    ]


def _environment(makers: Sequence[Callable[[], Tool]], name: str) -> type[ToolEnv]:
    """A class whose sessions have these tools. Makers are shared: a tool of verl's serves all sessions."""
    tools = [make() for make in makers]
    names = [tool.name for tool in tools]
    if twice := next((n for n in names if names.count(n) > 1), None):
        raise ConfigError(f"Two tools are called {twice!r}. Give each a name of its own.")
    schemas = [tool.schema for tool in tools]
    files = tuple(dict.fromkeys(filter(None, (source_file(tool.written) for tool in tools))))
    return type(f"ToolsOf_{name}", (ToolEnv,), {"callables": tools, "tools": schemas, "user_files": files})


def _schema(function: Callable[..., Any], named: str) -> dict[str, Any]:
    """What transformers makes of type hints and docstring, as TRL does it."""
    from transformers.utils import get_json_schema

    try:
        return get_json_schema(function)
    except Exception as e:
        # DocstringParsingException and TypeHintParsingException, which only a deep import has, and what they wrap
        at = f"{inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1]}"
        raise ConfigError(
            f"{named}: {at}: {function.__name__} cannot be described to a model: {e} A tool has a type hint for every"
            " argument and a docstring in Google's style with a line for each under `Args:`."
        ) from None


def _function(function: Callable[..., Any], named: str) -> Callable[[], Tool]:
    schema = _schema(function, named)
    return lambda: Tool(schema["function"]["name"], schema, function)


def _trl_environment(cls: type, named: str) -> type[TrlEnv]:
    try:
        probe = cls()
    except Exception as e:
        raise ConfigError(
            f"{named}: {inspect.getsourcefile(cls)}: {cls.__name__}() raised {described(e)}. TRL makes an"
            " environment without arguments, and so does a run."
        ) from None
    schemas = [_schema(getattr(probe, name), named) for name in _methods(cls)]
    members = {
        "environment": cls,
        "methods": _methods(cls),
        "tools": schemas,
        "user_files": tuple(filter(None, [source_file(cls)])),
    }
    return type(f"EnvironmentOf_{cls.__name__}", (TrlEnv,), members)


def _verl(cls: type, config: Mapping[str, Any], schema: Any, named: str) -> Callable[[], Tool]:
    where = f"{inspect.getsourcefile(cls)}:{inspect.getsourcelines(cls)[1]}: {cls.__name__}"
    try:
        tool = cls(config=dict(config), tool_schema=schema)
        model = tool.get_openai_tool_schema() or schema
        table = model.model_dump(exclude_none=True, exclude_unset=True) if hasattr(model, "model_dump") else dict(model)
        name = str(table["function"]["name"])
    except Exception as e:
        raise ConfigError(
            f"{named}: {where} cannot be made without more: {described(e)}. Name verl's YAML file instead,"
            " which gives its config and tool_schema, or let get_openai_tool_schema return a schema."
        ) from None
    return lambda: VerlTool(name, {"type": "function", **table}, tool)


def _tools_of_yaml(path: Path, named: str) -> list[Callable[[], Tool]]:
    import yaml

    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise ConfigError(f"{named}: {path} cannot be read: {str(e).splitlines()[0]}. Correct the file.") from None
    tools = table.get("tools") if isinstance(table, dict) else None
    if not isinstance(tools, list) or not tools:
        raise ConfigError(f"{named}: {path} has no list `tools`, each with class_name, config and tool_schema.")
    makers = []
    for i, tool in enumerate(tools):
        where = f"{named}: {path}: tools[{i}]"
        if not isinstance(tool, dict) or not isinstance(tool.get("class_name"), str):
            raise ConfigError(f"{where} has no class_name. Write the class as module.Class.")
        config = tool.get("config") or {}
        if str(config.get("type", "native")) != "native":
            raise ConfigError(
                f"{where}: config.type = {config['type']!r}. Tools of an MCP server are an environment of their own:"
                ' env.name = "mcp" (docs/environments.md).'
            )
        cls = _class_of(tool["class_name"], path.parent, where)
        table_of_schema = tool.get("tool_schema")
        schema = _schema_model(cls).model_validate(table_of_schema) if table_of_schema else None
        makers.append(_verl(cls, config, schema, where))
    return makers


def _schema_model(cls: type) -> Any:
    """verl's own schema class where verl is installed, else the stand-in."""
    installed = sys.modules.get("verl.tools.schemas")
    return getattr(installed, "OpenAIFunctionToolSchema", OpenAIFunctionToolSchema)


def _class_of(name: str, beside: Path, where: str) -> type:
    """The class of a YAML's class_name: module.Class, found beside the file, in the current directory, or installed."""
    module, _, attribute = name.rpartition(".")
    with _found_first(str(beside), str(Path.cwd())):
        for _ in range(2):
            try:
                return getattr(importlib.import_module(module), attribute)
            except ModuleNotFoundError as e:
                if install(e.name):
                    continue
                raise ConfigError(
                    f"{where}: class_name = {name!r}: there is no module {e.name!r} here. Put its file beside the YAML"
                    " file, or install it (verl: pip install --no-deps verl)."
                ) from None
            except AttributeError as e:
                raise ConfigError(f"{where}: class_name = {name!r}: {e}. Correct the name.") from None
            except Exception as e:
                at = _line_of(e)
                raise ConfigError(
                    f"{where}: class_name = {name!r} cannot be loaded: {at}{described(e)}. Correct that line."
                ) from None
    raise ConfigError(f"{where}: class_name = {name!r}: {module} cannot be imported.")


def _line_of(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}: " if trace else ""


@contextmanager
def _found_first(*directories: str):
    before = list(sys.path)
    sys.path[:0] = directories
    try:
        yield
    finally:
        sys.path[:] = before
