"""Complete a model directory that the learner wrote, so that the model can be prompted as the run prompted it.

chat_template.jinja       the run's prompt, with a place for the question (data/export_template.py)
generation_config.json    also answer_stop_strings, with which an answer ends. This is our own key: with transformers'
                          own key `generate` fails without a tokenizer
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from ...config import Config
from ...config.sections.output import OF_AVERAGE
from ...data.chat_template import bos_of
from ...data.export_template import Block, chat_template, raw_template, template_of
from ...errors import TurnError
from ...rollout import protocols
from ..say import say

TEMPLATE = "chat_template.jinja"
_OUTPUT = "\x00output\x00"


def models(cfg: Config, directory: Path) -> list[Path]:
    """Return the directories of an export: the model's, and that of its moving average, if there is one."""
    return [directory, *([directory.with_name(directory.name + OF_AVERAGE)] if cfg.train.ema_beta else [])]


def say_where(console: Console, cfg: Config, directory: Path) -> None:
    """Print the directories of an export."""
    for what, path in zip(("model: ", "average:"), models(cfg, directory), strict=False):
        say(console, f"{what} {path}")


def complete(cfg: Config, directory: Path) -> None:
    """Add the chat template and the stop strings to an export, and to that of the moving average beside it.

    Raises:
        OSError: The disk refuses them.
    """
    for model_directory in models(cfg, directory):
        _complete(cfg, model_directory)


def _complete(cfg: Config, directory: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    own = template_of(tokenizer)
    if cfg.rollout.agent == "external":  # Agents sent their own messages, and ended their answers themselves.
        return
    if own and cfg.data.apply_chat_template:
        template = chat_template(own, cfg.data)
    else:
        # Prompts of such a run begin with the token that the tokenizer puts before every text. Servers expect the
        # template to write it.
        template = ("{{- bos_token -}}" if bos_of(tokenizer) else "") + raw_template(cfg.data, block_of(cfg))
    (directory / TEMPLATE).write_text(template, encoding="utf-8")
    if stops := answer_stops(cfg):
        path = directory / "generation_config.json"
        path.write_text(
            json.dumps(json.loads(path.read_text()) | {"answer_stop_strings": list(stops)}, indent=2) + "\n",
            encoding="utf-8",
        )


def block_of(cfg: Config) -> Block | None:
    """Return the block that the run's turn protocol writes around an output; None if it is not text, output, text.

    The protocol is asked with a short output, and must show it whole.
    """
    protocol: Any = protocols.make(cfg.env)
    # The block of a function protocol names the function; a messages protocol has no block.
    if cfg.env.protocol == "function" or not hasattr(protocol, "insertion"):
        return None
    try:
        before, output, after = protocol.insertion(_OUTPUT).partition(_OUTPUT)
        padded = protocols.make(cfg.env).insertion(f" {_OUTPUT}\n")
    except TurnError:  # a user's protocol that reads the output
        return None
    if not output or padded not in (before + f" {_OUTPUT}\n" + after, before + _OUTPUT + after):
        return None
    return Block(before, after, strips=padded == before + _OUTPUT + after)


def answer_stops(cfg: Config) -> tuple[str, ...]:
    """Return the stop strings of a model that has no calls left: a text without a call ends where it did in the run."""
    return tuple(protocols.make(cfg.env.model_copy(update={"max_calls": 0})).stops)
