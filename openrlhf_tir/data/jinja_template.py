"""Read a model directory's chat template without transformers, for checks before anything heavy is loaded.

It renders as transformers does: sandbox, trimmed blocks, `raise_exception`, `strftime_now`, a `tojson` without escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .chat_template import Apply, ChatTemplate, Message, strftime_now

_GENERATION = re.compile(r"\{%([-+]?)\s*(generation|endgeneration)\s*([-+]?)%\}")
FOR_TOOLS = "tool_use"
"""Name of the template that transformers takes when there are tools."""
NAMED = ("bos_token", "eos_token", "pad_token", "unk_token")
"""Special tokens that a template may name."""


def of_text(template: str, names: Mapping[str, str]) -> Apply:
    """Return a function that renders a template.

    Args:
        template: The Jinja text.
        names: Special tokens that it may name, with their texts.

    Raises:
        jinja2.TemplateSyntaxError: It is not Jinja.
    """
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    env.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    compiled = env.from_string(_GENERATION.sub(_as_condition, template))

    def apply(messages: Sequence[Message], **options: Any) -> str:
        return compiled.render(messages=messages, **{"documents": None, **names, **options})

    return apply


def _as_condition(match: re.Match[str]) -> str:
    """Return a block in place of transformers' own, which marks the assistant's text and changes nothing."""
    before, name, after = match.groups()
    return f"{{%{before} {'endif' if name == 'endgeneration' else 'if true'} {after}%}}"


def of_directory(model: Path, options: Mapping[str, Any]) -> ChatTemplate | None:
    """Return the chat template of a model's directory; None if it has none.

    Of several by name the one for tools is taken when there are tools, as transformers does.

    Raises:
        ConfigError: It is not Jinja, or does not end.
    """
    config = _json(model / "tokenizer_config.json")
    tokens = _json(model / "tokenizer.json").get("added_tokens") or []
    texts = _texts(model, config.get("chat_template"))
    if "default" not in texts:
        return None
    named = {name: _text(config.get(name)) for name in NAMED}
    added = [*tokens, *(config.get("added_tokens_decoder") or {}).values()]
    specials = {token["content"] for token in added if isinstance(token, dict) and token.get("special")} | {
        text for text in named.values() if text
    }
    names = {name: text for name, text in named.items() if text}
    renders = {name: _compiled(texts[name], names, model) for name in ("default", FOR_TOOLS) if name in texts}

    def apply(messages: Sequence[Message], **arguments: Any) -> str:
        render = renders.get(FOR_TOOLS) if arguments.get("tools") else None
        return (render or renders["default"])(messages, **{**options, **arguments})

    ordinary = {token["content"] for token in added if isinstance(token, dict)} - specials
    writes_time = any("strftime_now" in text for text in texts.values())
    template = ChatTemplate(apply, sorted(specials), sorted(ordinary), writes_time=writes_time)
    template.check_ends([{"role": "user", "content": "A question."}])
    return template


def _compiled(text: str, names: Mapping[str, str], model: Path) -> Apply:
    from jinja2 import TemplateSyntaxError

    try:
        return of_text(text, names)
    except TemplateSyntaxError as error:
        fault = f"line {error.lineno}: {error.message}"
    except (SyntaxError, RecursionError, MemoryError) as error:  # Python's own limits, such as 20 nested loops.
        fault = f"{type(error).__name__}: {error}"
    raise ConfigError(f"The chat template of {model} is no Jinja: {fault}. Copy it again from the model's source.")


def _texts(model: Path, of_config: Any) -> dict[str, str]:
    """Return the chat templates of a model's directory by name; the one without a name is "default"."""
    if isinstance(of_config, str):
        of_config = {"default": of_config}
    elif isinstance(of_config, list):
        of_config = {part.get("name"): part.get("template") for part in of_config if isinstance(part, dict)}
    texts = {name: text for name, text in (of_config or {}).items() if isinstance(text, str)}
    file = model / "chat_template.jinja"
    files = {path.stem: path for path in (model / "additional_chat_templates").glob("*.jinja")}
    if file.is_file() or files:  # transformers reads the files, if there are any, and not the configuration.
        texts = {name: _read(path) for name, path in files.items()}
        texts |= {"default": _read(file)} if file.is_file() else {}
    return texts


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Copy it again from the model's source.") from None


def _text(token: Any) -> str:
    if isinstance(token, dict):
        return token.get("content", "")
    return token if isinstance(token, str) else ""


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return {}  # Other checks report what is wrong with a model's files.
    return value if isinstance(value, dict) else {}
