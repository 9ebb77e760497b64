"""Exported: a model directory that the learner wrote -> one that can be asked as the run asked it.

chat_template.jinja       the run's prompt, with the question in place (data/export_template.py)
generation_config.json    also answer_stop_strings, with which an answer ends. A key of ours: with transformers' own,
                          `generate` fails without a tokenizer
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...config import Config
from ...config.sections.output import OF_AVERAGE
from ...data.chat_template import bos_of
from ...data.export_template import Block, chat_template, raw_template, template_of
from ...episodes import turns
from ...errors import TurnError

TEMPLATE = "chat_template.jinja"
_OUTPUT = "\x00output\x00"


def models(cfg: Config, directory: Path) -> list[Path]:
    """The directories of an export: the model's, and that of its average, if there is one."""
    return [directory, *([directory.with_name(directory.name + OF_AVERAGE)] if cfg.train.enable_ema else [])]


def complete(cfg: Config, directory: Path) -> None:
    """Add the chat template and the stop strings to an export, and to that of the average beside it. Raises OSError
    when the disk refuses them."""
    for each in models(cfg, directory):
        _complete(cfg, each)


def _complete(cfg: Config, directory: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    own = template_of(tokenizer)
    if cfg.rollout.agent == "external":  # agents sent messages of their own, and ended their answers themselves
        return
    if own and cfg.data.apply_chat_template:
        template = chat_template(own, cfg.data)
    else:  # prompts of such a run begin as the tokenizer begins every text, which servers leave to the template
        template = ("{{- bos_token -}}" if bos_of(tokenizer) else "") + raw_template(cfg.data, block_of(cfg))
    (directory / TEMPLATE).write_text(template, encoding="utf-8")
    if stops := answer_stops(cfg):
        path = directory / "generation_config.json"
        path.write_text(
            json.dumps(json.loads(path.read_text()) | {"answer_stop_strings": list(stops)}, indent=2) + "\n",
            encoding="utf-8",
        )


def block_of(cfg: Config) -> Block | None:
    """The block of the run's turn protocol; None where it is not text, output, text. It is asked with a short output,
    and must show it whole."""
    protocol: Any = turns.make(cfg.env)
    # its block names the function that was called; it answers with messages
    if cfg.env.protocol == "function" or not hasattr(protocol, "insertion"):
        return None
    try:
        before, found, after = protocol.insertion(_OUTPUT).partition(_OUTPUT)
        padded = turns.make(cfg.env).insertion(f" {_OUTPUT}\n")
    except TurnError:  # a protocol of one's own that reads the output
        return None
    if not found or padded not in (before + f" {_OUTPUT}\n" + after, before + _OUTPUT + after):
        return None
    return Block(before, after, strips=padded == before + _OUTPUT + after)


def answer_stops(cfg: Config) -> tuple[str, ...]:
    """The stop strings of a model without calls left: a text that is no call ends where the run's did."""
    return tuple(turns.make(cfg.env.model_copy(update={"max_calls": 0})).stops)
