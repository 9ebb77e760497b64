"""Read a model directory's chat template without transformers, for checks before anything heavy is loaded.

It renders as transformers does: sandbox, trimmed blocks, `raise_exception`, `strftime_now`, a `tojson` without escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .chat_template import Apply, ChatTemplate, Message

_GENERATION = re.compile(r"\{%([-+]?)\s*(generation|endgeneration)\s*([-+]?)%\}")
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
    env.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": lambda time_format: datetime.now().strftime(time_format),
    }
    compiled = env.from_string(_GENERATION.sub(_as_condition, template))

    def apply(messages: Sequence[Message], **options: Any) -> str:
        return compiled.render(messages=messages, **{**names, **options})

    return apply


def _as_condition(match: re.Match[str]) -> str:
    """Return a block in place of transformers' own, which marks the assistant's text and changes nothing."""
    before, name, after = match.groups()
    return f"{{%{before} {'endif' if name == 'endgeneration' else 'if true'} {after}%}}"


def of_directory(model: Path, options: Mapping[str, Any]) -> ChatTemplate | None:
    """Return the chat template of a model's directory; None if it has none, or several by name.

    Raises:
        ConfigError: It is not Jinja.
    """
    from jinja2 import TemplateSyntaxError

    config = _json(model / "tokenizer_config.json")
    tokens = _json(model / "tokenizer.json").get("added_tokens") or []
    file = model / "chat_template.jinja"
    template = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    if not isinstance(template, str):
        return None
    named = {name: _text(config.get(name)) for name in NAMED}
    added = [*tokens, *(config.get("added_tokens_decoder") or {}).values()]
    specials = {token["content"] for token in added if isinstance(token, dict) and token.get("special")} | {
        text for text in named.values() if text
    }
    try:
        render = of_text(template, {name: text for name, text in named.items() if text})
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"The chat template of {model} is no Jinja: line {error.lineno}: {error.message}."
            " Copy it again from the model's source."
        ) from None
    return ChatTemplate(lambda messages, **arguments: render(messages, **arguments, **options), sorted(specials))


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
