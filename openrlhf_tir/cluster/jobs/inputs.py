"""The inputs of a run: prompts, held-out problems and canary prompts.

`train` reads them while Ray and the models start (reading.py). What can be told of the data without a tokenizer has
been checked before (cli/checks/data.py).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from ...config import Config, Data
from ...config.environments import entry_of, unlabelled
from ...config.paths import shorten
from ...data import PromptSet, PromptStream, lanes_of, load_prompts
from ...data.blend import curriculum_of
from ...data.chat_template import ChatTemplate, special_texts_of
from ...data.hub import fault_of
from ...data.template_shows import shown_by
from ...engines.codec import HfCodec
from ...errors import ConfigError, DataError
from ...inert import MARK
from ...pushes import CANARY_TEXTS
from ...rollout.protocols.chat_format import chat_formats
from ...rollout.protocols.shown_tools import calls_tools_of_env, check_tools_shown, relies_on_template
from ...types import Task

log = logging.getLogger(__name__)

MAX_SEARCHED = 1000
"""Prompts that are searched for texts of special tokens, and for tools that the chat template does not show."""


@dataclass
class Inputs:
    """The inputs of a run.

    Attributes:
        prompts: The prompts to train on.
        held_out: The held-out problems; empty if there is no eval.dataset.
        canary: Token ids of the canary prompts.
    """

    prompts: PromptSet
    held_out: list[Task]
    canary: list[list[int]]


class TaskPrompts(PromptStream):
    """The pipeline's `Prompts`: the order of a run's prompts, with their tasks."""

    def __init__(self, prompts: PromptSet, cfg: Config) -> None:
        lanes = lanes_of(prompts, cfg.environments, cfg.data.prompt_probs)
        curriculum = curriculum_of(cfg, prompts)
        super().__init__(len(prompts), cfg.train.seed, cfg.data.shuffle, cfg.train.num_episodes, lanes, curriculum)
        self.prompts = prompts

    def task(self, prompt: int) -> Task:
        """Return the task of a prompt."""
        return self.prompts[prompt]


def prompts_of(cfg: Config, data: Data, tokenizer: Any, max_prompt_tokens: int | None = None) -> PromptSet:
    """Return the prompts of `data` for the environments of the run. Raises as `load_prompts` does.

    Raises:
        ConfigError: The chat template does not show a prompt's tools, and the prompt does not describe them.
    """
    templates = {name: e.input_template for name, e in cfg.environments.items()} if cfg.envs else None
    tools = {name: e.env.tools for name, e in cfg.environments.items()}
    prompts = load_prompts(
        data,
        tokenizer,
        env=cfg.env.name,
        templates_of=templates,
        tools_of=tools,
        max_prompt_tokens=max_prompt_tokens,
        unlabelled=unlabelled(cfg),
    )
    template = ChatTemplate.of(tokenizer, data.chat_template_options) if data.apply_chat_template else None
    if template is not None and not cfg.by_agent:
        by_template = shown_by(template).tools
        for task in prompts.tasks[:MAX_SEARCHED]:
            e = entry_of(cfg.environments, task.env)
            offered = task.chat.tools if task.chat else ()
            never_called = list(offered) == e.env.tools and not calls_tools_of_env(e)
            if offered and not never_called and relies_on_template(e):
                model = cfg.actor.model_name_or_path
                check_tools_shown(e, model, offered, task.prompt, task.row, by_template=by_template)
    return prompts


def tokenizer_of(cfg: Config) -> Any:
    """Return the policy's tokenizer.

    Raises:
        ConfigError: There is none, or its files cannot be read.
        Unavailable: The hub does not answer.
    """
    from transformers import AutoTokenizer  # It takes CPU seconds, which a controller does without.

    name = cfg.actor.model_name_or_path
    try:
        return AutoTokenizer.from_pretrained(name)
    except OSError as error:
        raise fault_of(error)(f"There is no tokenizer in {name}: {error}. Correct actor.model_name_or_path.") from error
    except Exception as e:  # A broken tokenizer.json raises KeyError, ValueError or tokenizers' own Exception.
        raise ConfigError(
            f"The tokenizer in {name} cannot be read: {type(e).__name__}: {shorten(str(e))}. Save or download its files"
            " again, or correct actor.model_name_or_path."
        ) from e


def load_inputs(cfg: Config, *, training: bool = True) -> Inputs:
    """Read the inputs of a run.

    Args:
        cfg: The configuration.
        training: Whether the run trains; otherwise it only evaluates.

    Raises:
        ConfigError: A data set is missing or cannot be read.
        DataError: Rows cannot be used, or too few prompts fit.
        Unavailable: The hub does not answer.
    """
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
    held_out = [*prompts_of(cfg, cfg.held_out, tokenizer, longest).tasks] if cfg.eval.dataset else []
    searched = (prompts.tasks if len(prompts) else held_out)[:MAX_SEARCHED]
    # If the model is on this machine, the checks have reported this already, for all rows.
    already_reported = special_texts_of(cfg.actor.model_name_or_path)
    count = 0 if already_reported else sum(MARK in task.prompt for task in searched)
    if count:
        log.warning(
            f"{count} of the first {len(searched)} prompts have the text of a special token in their rows: the model"
            " reads its characters, not the token. Give rows that a chat template has rendered as messages with"
            " --data.apply_chat_template, or declare them with --data.rendered"
        )
    canary = [
        tokenizer(task.prompt, add_special_tokens=False)["input_ids"]
        for task in (prompts.tasks if len(prompts) else held_out)[: 2 * CANARY_TEXTS]  # A proof has two rounds.
    ]
    return Inputs(prompts, held_out, canary)
