"""Turn tools that were written for verl and TRL into an environment class, as `env.file` needs one.

    a function, or a list of them      TRL's `tools`: type hints and a Google docstring
    a class with `reset` and methods   TRL's `environment_factory`: each public method is a tool
    a class with create and execute    verl's BaseTool
    a YAML file                        verl's tool configuration: class_name, config, tool_schema

The action is a JSON list of calls, [{"name": ..., "arguments": {...}}], as in every environment with tools.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from env_servers.defects import described
from env_servers.env import Env
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.user_code.plugins import source_file

from .foreign_tools import Tool, ToolEnv, TrlEnv, VerlTool
from .verl_stand_in import OpenAIFunctionToolSchema, install

YAML = (".yaml", ".yml")


def environment_of(plugin: Any, setting: str) -> Any:
    """Return an environment class for a tool, or `plugin` itself if it has none of the forms above.

    Args:
        plugin: What `env.file` names; the path of a YAML file as text.
        setting: The setting and its value, for messages.

    Raises:
        ConfigError: It has one of these forms, but cannot be used.
    """
    if isinstance(plugin, str) and plugin.endswith(YAML):
        return _environment(_tools_of_yaml(Path(plugin), setting), Path(plugin).stem)
    if inspect.isfunction(plugin) or inspect.isbuiltin(plugin):
        return _environment([_function(plugin, setting)], plugin.__name__)
    if isinstance(plugin, list | tuple) and plugin:
        return _environment([_tool(part, setting) for part in plugin], "tools")
    if inspect.isclass(plugin) and _is_verl(plugin):
        return _environment([_verl(plugin, {}, None, setting)], plugin.__name__)
    if inspect.isclass(plugin) and not _is_ours(plugin) and _is_trl(plugin):
        return _trl_environment(plugin, setting)
    return plugin


def _tool(part: Any, setting: str) -> Callable[[], Tool]:
    """Return a maker of the tool of one element of a list. Raises ConfigError."""
    if inspect.isclass(part) and _is_verl(part):
        return _verl(part, {}, None, setting)
    if callable(part) and not inspect.isclass(part):
        return _function(part, setting)
    raise ConfigError(
        f"{setting}: {part!r} is not a tool, which is a function, or a class of verl's (create, execute, release)."
    )


def _is_ours(cls: type) -> bool:
    """Return True if a class is an environment already."""
    return issubclass(cls, Env) or inspect.iscoroutinefunction(getattr(cls, "step", None))


def _is_verl(cls: type) -> bool:
    """Return True if a class has the methods of verl's BaseTool."""
    return all(callable(getattr(cls, name, None)) for name in ("create", "execute", "release"))


def _is_trl(cls: type) -> bool:
    """Return True if a class has the form of TRL's environments."""
    reset = getattr(cls, "reset", None)
    return callable(reset) and not inspect.iscoroutinefunction(reset) and bool(_methods(cls))


def _methods(cls: type) -> list[str]:
    """Return the names of a class's tools: its public methods except reset, get_reward and close."""
    return [
        name
        for name, member in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and name not in ("reset", "get_reward", "close")
    ]


def _environment(makers: Sequence[Callable[[], Tool]], name: str) -> type[ToolEnv]:
    """Return an environment class whose sessions have these tools. The makers are shared: a tool of verl serves all
    sessions."""
    tools = [make() for make in makers]
    names = [tool.name for tool in tools]
    if duplicate := next((tool_name for tool_name in names if names.count(tool_name) > 1), None):
        raise ConfigError(f"Two tools are called {duplicate!r}. Give each a name of its own.")
    schemas = [tool.schema for tool in tools]
    files = tuple(dict.fromkeys(filter(None, (source_file(tool.source) for tool in tools))))
    return type(f"ToolsOf_{name}", (ToolEnv,), {"callables": tools, "tools": schemas, "user_files": files})


def _schema(function: Callable[..., Any], setting: str) -> dict[str, Any]:
    """Return the schema that transformers makes of type hints and docstring, as TRL does. Raises ConfigError."""
    from transformers.utils import chat_template_utils

    # Only for a tool that takes a tensor would transformers import torch, two CPU seconds and 200 MB in every process
    # of a server. The file of such a tool has imported it.
    is_torch_available = chat_template_utils.is_torch_available
    chat_template_utils.is_torch_available = lambda: sys.modules.get("torch") is not None
    try:
        return chat_template_utils.get_json_schema(function)
    except Exception as e:
        # DocstringParsingException and TypeHintParsingException, which only a deep import has, and what they wrap
        at = f"{inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1]}"
        raise ConfigError(
            f"{setting}: {at}: {function.__name__} cannot be described to a model: {e} A tool has a type hint for every"
            " argument and a docstring in Google's style with a line for each under `Args:`."
        ) from None
    finally:
        chat_template_utils.is_torch_available = is_torch_available


def _function(function: Callable[..., Any], setting: str) -> Callable[[], Tool]:
    """Return a maker of the tool of a function. Raises ConfigError."""
    schema = _schema(function, setting)
    return lambda: Tool(schema["function"]["name"], schema, function)


def _trl_environment(cls: type, setting: str) -> type[TrlEnv]:
    """Return the environment class of a class in TRL's form. Raises ConfigError."""
    try:
        probe = cls()
    except Exception as e:
        raise ConfigError(
            f"{setting}: {inspect.getsourcefile(cls)}: {cls.__name__}() raised {described(e)}. TRL makes an"
            " environment without arguments, and so does a run."
        ) from None
    schemas = [_schema(getattr(probe, name), setting) for name in _methods(cls)]
    members = {
        "environment": cls,
        "methods": _methods(cls),
        "tools": schemas,
        "user_files": tuple(filter(None, [source_file(cls)])),
    }
    return type(f"EnvironmentOf_{cls.__name__}", (TrlEnv,), members)


def _verl(cls: type, config: Mapping[str, Any], schema: Any, setting: str) -> Callable[[], Tool]:
    """Return a maker of the tool of a verl class. Raises ConfigError."""
    where = f"{inspect.getsourcefile(cls)}:{inspect.getsourcelines(cls)[1]}: {cls.__name__}"
    try:
        tool = cls(config=dict(config), tool_schema=schema)
        model = tool.get_openai_tool_schema() or schema
        table = model.model_dump(exclude_none=True, exclude_unset=True) if hasattr(model, "model_dump") else dict(model)
        name = str(table["function"]["name"])
    except Exception as e:
        raise ConfigError(
            f"{setting}: {where} cannot be made without more: {described(e)}. Name verl's YAML file instead,"
            " which gives its config and tool_schema, or let get_openai_tool_schema return a schema."
        ) from None
    return lambda: VerlTool(name, {"type": "function", **table}, tool)


def _tools_of_yaml(path: Path, setting: str) -> list[Callable[[], Tool]]:
    """Return makers of the tools in a YAML file of verl's. Raises ConfigError."""
    import yaml

    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise ConfigError(f"{setting}: {path} cannot be read: {str(e).splitlines()[0]}. Correct the file.") from None
    tools = table.get("tools") if isinstance(table, dict) else None
    if not isinstance(tools, list) or not tools:
        raise ConfigError(f"{setting}: {path} has no list `tools`, each with class_name, config and tool_schema.")
    makers = []
    for i, tool in enumerate(tools):
        where = f"{setting}: {path}: tools[{i}]"
        if not isinstance(tool, dict) or not isinstance(tool.get("class_name"), str):
            raise ConfigError(f"{where} has no class_name. Write the class as module.Class.")
        config = tool.get("config") or {}
        if not isinstance(config, dict):
            raise ConfigError(f"{where}: config is {config!r:.80}, not a table of what the class takes.")
        if str(config.get("type", "native")) != "native":
            raise ConfigError(
                f"{where}: config.type = {config['type']!r}. Tools of an MCP server are an environment of their own:"
                ' env.name = "mcp" (docs/environments.md).'
            )
        cls = _class_of(tool["class_name"], path.parent, where)
        makers.append(_verl(cls, config, _schema_of_yaml(tool.get("tool_schema"), where), where))
    return makers


def _schema_of_yaml(table: Any, where: str) -> Any:
    """Return the tool_schema of a YAML file as verl's own class if verl is loaded, else as the stand-in's.

    Raises ConfigError.
    """
    if not table:
        return None
    installed = sys.modules.get("verl.tools.schemas")
    try:
        return getattr(installed, "OpenAIFunctionToolSchema", OpenAIFunctionToolSchema).model_validate(table)
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
        field = ".".join(["tool_schema", *map(str, first["loc"])])
        raise ConfigError(f"{where}: {field}: {first['msg']}. Write the schema as verl's documentation does.") from None


def _class_of(name: str, directory: Path, where: str) -> type:
    """Return the class of a YAML file's class_name.

    Args:
        name: module.Class, which is looked for beside the file, in the current directory, and among installed modules.
        directory: Directory of the YAML file.
        where: Begins the messages.

    Raises:
        ConfigError: The class cannot be loaded.
    """
    module, _, attribute = name.rpartition(".")
    with _first_on_path(str(directory), str(Path.cwd())):
        for _ in range(2):  # the second time with the stand-in for verl
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
    """Return "file:line: " where an error was raised, "" if it has no traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}: " if trace else ""


@contextmanager
def _first_on_path(*directories: str):
    """Put directories first on sys.path for the duration of the block."""
    before = list(sys.path)
    sys.path[:0] = directories
    try:
        yield
    finally:
        sys.path[:] = before
