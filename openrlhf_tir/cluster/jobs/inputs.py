"""Inputs: a configuration -> prompts, held-out problems and canary prompts. Read before Ray or a model is started, so
that bad data is told at once."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from transformers import AutoTokenizer

from ...config import Config, Data
from ...config.environments import unlabelled
from ...config.paths import shorten
from ...data import PromptSet, PromptStream, lanes_of, load_prompts
from ...data.blend import curriculum_of
from ...data.chat_template import special_texts_of
from ...data.hub import fault_of
from ...engines.codec import HfCodec
from ...engines.start import CANARIES
from ...episodes.chat_format import chat_formats
from ...errors import ConfigError, DataError
from ...inert import MARK
from ...types import Task

log = logging.getLogger(__name__)

LOOKED_AT = 1000
"""Prompts that are looked through for special tokens' texts."""


@dataclass
class Inputs:
    """`held_out` is empty when there is no eval.dataset."""

    prompts: PromptSet
    held_out: list[Task]
    canary: list[list[int]]


class TaskPrompts:
    """A PromptSet in the order of a PromptStream, as the pipeline's `Prompts`."""

    def __init__(self, prompts: PromptSet, cfg: Config) -> None:
        self.prompts = prompts
        lanes = lanes_of(prompts, cfg.environments, cfg.data.prompt_probs)
        curriculum = curriculum_of(cfg, prompts)
        stream = PromptStream(len(prompts), cfg.train.seed, cfg.data.shuffle, cfg.train.num_episodes, lanes, curriculum)
        self.next, self.more, self.in_place_of = stream.next, stream.more, stream.in_place_of
        self.learned, self.facts = stream.learned, stream.facts
        self.state, self.restore = stream.state, stream.restore

    def task(self, prompt: int) -> Task:
        return self.prompts[prompt]


def prompts_of(cfg: Config, data: Data, tokenizer: Any, max_prompt_tokens: int | None = None) -> PromptSet:
    """The prompts of `data` for the environments of the run. Raises as load_prompts does."""
    templates = {name: e.input_template for name, e in cfg.environments.items()} if cfg.envs else None
    tools = {name: e.env.tools for name, e in cfg.environments.items()}
    return load_prompts(
        data,
        tokenizer,
        env=cfg.env.name,
        templates_of=templates,
        tools_of=tools,
        max_prompt_tokens=max_prompt_tokens,
        unlabelled=unlabelled(cfg),
    )


def tokenizer_of(cfg: Config) -> Any:
    """Return the policy's tokenizer.

    Raises:
        ConfigError: There is none, or its files cannot be read.
        Unavailable: The hub does not answer.
    """
    name = cfg.actor.model_name_or_path
    try:
        return AutoTokenizer.from_pretrained(name)
    except OSError as e:
        raise fault_of(e)(f"There is no tokenizer in {name}: {e}. Correct actor.model_name_or_path.") from e
    except Exception as e:  # what a broken tokenizer.json raises is KeyError, ValueError or tokenizers' own Exception
        raise ConfigError(
            f"The tokenizer in {name} cannot be read: {type(e).__name__}: {shorten(str(e))}. Save or download its files"
            " again, or correct actor.model_name_or_path."
        ) from e


def load_inputs(cfg: Config, *, training: bool = True) -> Inputs:
    """Raises ConfigError or DataError for data that cannot be used, among them too few prompts that fit; Unavailable
    when the hub is."""
    tokenizer = tokenizer_of(cfg)
    for chats in chat_formats(cfg, HfCodec(tokenizer), tokenizer).values():
        for fact in chats.checked.facts() if chats else ():
            log.warning(fact)
    longest = cfg.data.max_len - cfg.rollout.max_new_tokens
    prompts = prompts_of(cfg, cfg.data, tokenizer, longest) if training else PromptSet([])
    if training and len(prompts) < cfg.rollout.batch_size:
        raise DataError(
            f"{len(prompts)} prompts of {cfg.data.prompt_dataset} can be used ({prompts.dropped or 'none dropped'}; a"
            f" prompt may have {longest} tokens), a batch needs rollout.batch_size = {cfg.rollout.batch_size}."
            " Raise data.max_len, or give more data."
        )
    if training:
        lanes_of(prompts, cfg.environments, cfg.data.prompt_probs)
        if prompts.distinct < len(prompts):
            log.info("%d prompts, of which %d are distinct", len(prompts), prompts.distinct)
    held_out = [*prompts_of(cfg, cfg.held_out, tokenizer, longest).tasks] if cfg.eval.dataset else []
    looked_at = (prompts.tasks if len(prompts) else held_out)[:LOOKED_AT]
    told = special_texts_of(cfg.actor.model_name_or_path)  # by the checks, of all rows
    if not told and (count := sum(MARK in task.prompt for task in looked_at)):
        log.warning(
            f"{count} of the first {len(looked_at)} prompts have the text of a special token in their rows: the model"
            " reads its characters, not the token. Rows that a chat template rendered already should be messages, with"
            " --data.apply_chat_template, or be named as such with --data.rendered"
        )
    canary = [
        tokenizer(t.prompt, add_special_tokens=False)["input_ids"]
        for t in (prompts.tasks if len(prompts) else held_out)[: 2 * CANARIES]  # of a proof's two rounds
    ]
    return Inputs(prompts, held_out, canary)
