"""Preflight: check everything about a configuration that can be checked before Ray or a model is loaded.

    names in registries -> machine (host_checks) -> model files -> run directory -> data -> environment server

Every fault is a ConfigError or DataError with fact, value and remedy. Only what may be there in a minute (a server that
does not answer, a port in use) is Unavailable, after `train.start_wait_s`. Nothing here imports torch, Ray or vLLM.
"""

from __future__ import annotations

import json
import logging
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from .. import filters, rewards
from ..algorithms.advantages import get_estimator
from ..algorithms.losses.own import POLICY_LOSS
from ..cluster.tokens import check_tokens
from ..config import Config, Reward, own_files, rules
from ..config.environments import Environment, in_section
from ..config.integrations.reward_signatures import UnknownSignature, convention_of
from ..config.method_summary import method_summary
from ..config.paths import shorten
from ..config.problems import Problems
from ..config.ranks import runs_here
from ..config.recipe_paths import RULE
from ..data import templates
from ..errors import ConfigError, Unavailable
from ..filters.samples import SAMPLE_FILTER
from ..machine.sizes import free_above, size
from ..memory.model_size import checkpoint_bytes
from ..pipeline.checkpoints import lineage
from ..pipeline.checkpoints.checkpoint import GROWTH
from ..rewards.context import RewardContext
from ..rollout import protocols
from ..types import Task, Trajectory
from ..user_code import plugins
from ..waiting.backoff import until_available
from .checks.chat import check_chat, check_template_of, check_tools_of_endpoint
from .checks.data import check_data
from .checks.engine_args import check_engine_args
from .checks.envs import check_envs, environments_of
from .checks.heads import check_heads
from .checks.host import (
    Machine,
    check_attention,
    check_backend,
    check_cards,
    check_colocation,
    check_deepspeed,
    check_gpus,
    check_loggers,
    check_memory,
    check_ports,
    check_push_room,
    check_writable,
    slow_precision,
)
from .checks.hub_name import model_directory
from .checks.learner import check_budget, check_lora, check_lora_of_mixture, check_positions, check_routing
from .checks.load_elsewhere import load_elsewhere
from .checks.method import check_method
from .checks.roles import check_roles
from .checks.shadowed import check_shadowed

log = logging.getLogger(__name__)


def check(
    cfg: Config,
    *,
    training: bool = True,
    model: bool = True,
    data: bool = True,
    machine: Machine | None = None,
    problems: Problems | None = None,
) -> list[str]:
    """Check a configuration.

    Args:
        cfg: The configuration.
        training: Whether to check also what only training needs (batch sizes against the data, loggers).
        model: Whether the model exists already; the quickstart makes its own.
        data: Whether the data exist already.
        machine: The machine; None examines this one.
        problems: Mistakes that were found before, in recipe and flags; they are raised together with those found here.

    Returns:
        Facts to print, one line each.

    Raises:
        ConfigError: Something cannot work; one line each.
        DataError: A row cannot be used.
        Unavailable: Something is missing that waiting may bring.
    """
    machine = machine or Machine()
    problems = Problems() if problems is None else problems
    check_shadowed(problems, Path.cwd())
    check_names(cfg, problems)
    facts = [f"method: {method_summary(cfg)}"] if training else []
    facts += own_code(cfg) + conventions_of(cfg) + (updates_of(cfg) if training else [])
    if training:
        with problems.caught(code="method"):
            facts += check_method(cfg)
    for place, name in openrlhf_files(cfg).items():
        with problems.caught(code="user_code"):
            if not _missing(name):
                load_elsewhere(place, name)
    with problems.caught(code="machine"):
        facts += check_attention(cfg, machine)
    with problems.caught(code="machine"):
        facts += check_gpus(cfg, machine, learner=training)
    if slow := slow_precision(cfg, machine):
        facts.append(f"{slow}. Set it to fp32; vllm.dtype follows it.")
    with problems.caught(code="machine"):
        facts += check_cards(cfg, machine)
    if training:
        with problems.caught(code="machine"):
            check_backend(cfg, machine)
        with problems.caught(code="not_installed"):
            check_deepspeed(cfg, machine)
        with problems.caught(code="method"):
            check_budget(cfg)
        with problems.caught(code="machine"):
            facts += check_colocation(cfg, machine)
    with problems.caught(code="engine"):
        facts += check_engine_args(cfg)
    if model:
        with problems.caught(code="model"):
            facts += check_model(cfg, machine)
            facts += check_push_room(cfg, machine) if training else []
        with problems.caught(code="machine"):
            facts += check_memory(cfg, machine, learner=training)
    with problems.caught(code="model"):
        facts += check_roles(cfg)
    if training:
        with problems.caught(code="logger"):
            check_loggers(cfg, machine)
    with problems.caught(code="run_dir"):
        check_writable(cfg)
        if training:
            facts += check_run_dir(cfg, made=model and data)
    if training:
        with problems.caught(code="token"):
            facts += check_tokens(cfg)
    if data:
        with problems.caught(code="data"):
            facts += check_data(cfg, training=training)
    wait_s = 0.0 if problems else cfg.train.start_wait_s  # Do not wait if the run will be refused anyway.
    with problems.caught(code="port"):
        until_available(lambda: check_ports(cfg), wait_s)
    facts += check_envs(cfg, machine, problems, wait_s, learner=training)
    problems.raise_any()
    return facts


def check_names(cfg: Config, problems: Problems) -> None:
    """Check that everything that the method names exists, can be called as it will be, and takes its options.

    Mistakes are added to `problems`.
    """
    for e in environments_of(cfg):
        check_names_of_env(cfg, e, problems)
    with problems.caught(code="method"):
        get_estimator(cfg.algo.advantage.estimator)
        problems.add(rules.violations_of_own_estimator(cfg))
    for name in openrlhf_files(cfg).values():
        if _missing(name):
            problems.add(f"{name.rpartition(':')[0]} does not exist. {RULE}", code="no_file")
    with problems.caught(code="user_code"):
        if cfg.actor.own_loss is not None:
            plugins.load(POLICY_LOSS, cfg.actor.own_loss)


def check_names_of_env(cfg: Config, e: Environment, problems: Problems) -> None:
    """Check protocol, rewards, filters, class and template of one environment. Messages name its section."""

    def caught() -> AbstractContextManager[None]:
        return problems.caught(lambda line: in_section(line, e.section), code="method")

    with caught():
        protocols.check(e.env)
        check_chat(cfg, e)
    for name in e.reward.weights or [e.reward.name]:
        with caught():
            check_reward(e.reward, name)
    with caught():
        filters.filters_of(e.filter)
    places = (
        (e.reward.group, rewards.GROUP_REWARD),
        (e.filter.sample, SAMPLE_FILTER),
        (e.env.file, plugins.ENVIRONMENT),
    )
    for named, place in places:
        with caught():
            if named is not None:
                plugins.load(place, named)
    with caught():
        templates.resolve(e.input_template)


def updates_of(cfg: Config) -> list[str]:
    """Return what follows from several updates per batch; [] if there is one."""
    updates_per_batch = cfg.updates_per_batch
    if updates_per_batch == 1:
        return []
    return [
        f"a batch makes {updates_per_batch} updates ({cfg.minibatches} mini-batches, {cfg.train.max_epochs} epochs): S"
        f" = {cfg.max_staleness} updates, so rollouts are at most {cfg.batches_ahead} batches ahead of training;"
        f" {cfg.train.max_steps} updates are {cfg.train.max_steps // updates_per_batch} batches"
    ]


def own_code(cfg: Config) -> list[str]:
    """Return which of the user's files the run will work with."""
    files = own_files.files_of(cfg)
    if not files:
        return []
    return [f"own code: {', '.join(map(str, files))}; a run works with copies in {cfg.run_dir / own_files.OWN}"]


def conventions_of(cfg: Config) -> list[str]:
    """Return in whose form each of the user's rewards is written, which decides how it is called."""
    facts = []
    for e in environments_of(cfg):
        for name in filter(lambda name: plugins.is_own(rewards.REWARD, name), e.reward.used):
            try:
                convention = convention_of(rewards.load(name))
            except ConfigError:
                continue  # reported by check_names_of_env
            called = "" if convention.name == "ours" else ", called once for each response"
            facts.append(in_section(f"reward.name {name}: a function of {convention.described}{called}", e.section))
    return facts


def openrlhf_files(cfg: Config) -> dict[str, str]:
    """Return place -> name of the user's files in OpenRLHF's form.

    They import torch and more, so they are loaded in their own process.
    """
    agent, remote = cfg.train.agent_func_path, cfg.reward.remote_url
    files = {"openrlhf_tir.rollout.protocols.agent_file.place:AGENT": agent} if agent else {}
    if remote and remote.endswith(":reward_func"):
        files["openrlhf_tir.rewards.remote.file:REWARD_FUNC"] = remote
    return files


def _missing(name: str) -> bool:
    file, _, _ = name.rpartition(":")
    return file.endswith(".py") and not Path(file).is_file()


def check_reward(cfg: Reward, name: str) -> None:
    """Check that a reward can be loaded and takes its options.

    A registered reward is called with an empty response: it reads its options before the response.

    Raises:
        ConfigError: It cannot be loaded, or an option is wrong.
    """
    function = rewards.load(name)
    if plugins.is_own(rewards.REWARD, name):
        try:
            convention_of(function, cfg.options_of(name).keys())
        except UnknownSignature as error:
            raise ConfigError(f"reward.name = {name!r}: {plugins.location(function)}: {error}.") from None
        return
    try:
        context = RewardContext(cfg, options=cfg.options_of(name))
        rewards.call_now(function, Trajectory(0, np.zeros(0, np.int32)), Task("", ""), context)
    except ConfigError:
        raise
    except Exception as error:  # Some rewards refuse an empty label; only what they say about options counts here.
        log.debug("reward %s refused an empty response: %s", name, error)


def check_run_dir(cfg: Config, *, made: bool = True) -> list[str]:
    """Check that a new run does not start on top of an earlier one's checkpoints, or that a resumed run can continue.

    Args:
        cfg: The configuration.
        made: Whether the model and the data that the configuration names exist already.

    Returns:
        Facts to print.
    """
    lineage.check_unused(cfg)
    if cfg.train.resume:
        path, facts = lineage.resumable(cfg, lineage.checkpoints_of(cfg), made=made)
        return [*facts, *([f"resuming from {path.name}"] if path else [])]
    return _checkpoint_room(cfg) if cfg.ckpt.max_num else []


def _checkpoint_room(cfg: Config) -> list[str]:
    """Return a fact if the disk has no room for ckpt.max_num checkpoints and the one that is being written.

    Raises:
        Unavailable: It has no room for the first one, and the new run deletes none of an earlier run.
    """
    checkpoint = checkpoint_bytes(cfg)
    directory = cfg.run_dir / cfg.ckpt.path
    needed = checkpoint * (cfg.ckpt.max_num + 1)
    free = free_above(directory)
    if needed <= free:
        return []
    # 0: some file systems do not tell.
    if 0 < free < int(checkpoint * GROWTH) and not lineage.checkpoints_of(cfg).exist:
        raise Unavailable(
            f"A checkpoint takes about {size(checkpoint)}, and the disk of {directory} has {size(free)} free: the run"
            " could save nothing. Make room, choose another --run-dir or ckpt.path, or set ckpt.max_num to 0, with"
            " which there are no checkpoints."
        )
    return [
        f"checkpoints take about {size(checkpoint)} each, {size(needed)} with ckpt.max_num = {cfg.ckpt.max_num} and the"
        f" one being written; {directory} has {size(free)} free."
        " A checkpoint that does not fit is left out, and training continues without it"
    ]


def check_model(cfg: Config, machine: Machine) -> list[str]:
    """Check that transformers and the engines can load the policy, and that a chat template exists if one is needed.

    Returns:
        Facts to print.

    Raises:
        ConfigError: The policy cannot be used.
    """
    path, facts = policy_directory(cfg)
    if path is None:
        return facts
    model = json_object(path / "config.json")
    check_heads(cfg, model, on_cpu=machine.gpus == 0 and runs_here(cfg))
    check_positions(cfg, model)
    check_routing(cfg, model)
    check_lora_of_mixture(cfg, model)
    check_lora(cfg, path)
    return [*_check_chat_template(cfg, path), *check_template_of(cfg, path), *check_tools_of_endpoint(cfg, path)]


def policy_directory(cfg: Config) -> tuple[Path | None, list[str]]:
    """Return the directory of the policy; None with a fact for a name that looks like one on the hub.

    Raises:
        ConfigError: transformers could not load it.
    """
    name = cfg.actor.model_name_or_path
    if not name:
        raise ConfigError(
            "actor.model_name_or_path is not set. Give a HF directory or name,"
            " or make a small model with `openrlhf-tir toy-model`."
        )
    toy = ", or make a small model with `openrlhf-tir toy-model`"
    path, facts = model_directory(cfg, name, "actor.model_name_or_path", toy)
    if path is None:
        return None, facts
    if not any((path / f).is_file() for f in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        raise ConfigError(f"{path} has no tokenizer (tokenizer.json). Copy the tokenizer's files beside config.json.")
    if (path / "tokenizer.json").is_file():
        json_object(path / "tokenizer.json")
    return path, []


def json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises ConfigError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is not readable JSON: {shorten(str(error))}. Copy it again from the model's source."
        ) from None
    if not isinstance(value, dict):
        raise ConfigError(
            f"{path} holds a {type(value).__name__}, not an object. Copy it again from the model's source."
        )
    return value


def _check_chat_template(cfg: Config, model: Path) -> list[str]:
    """Check that the model has a chat template, in its own file or in tokenizer_config.json, if one is needed."""
    config = model / "tokenizer_config.json"
    files = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
    if any((model / f).exists() for f in files) or (config.is_file() and json_object(config).get("chat_template")):
        return []
    if cfg.data.apply_chat_template:
        raise ConfigError(
            f"data.apply_chat_template is set, but {model} has no chat template (chat_template.jinja, or a key of"
            " tokenizer_config.json). Add one, or use --data.input_template, e.g. zerotir."
        )
    if cfg.rollout.agent == "external":
        return [
            f"{model} has no chat template: /v1/chat/completions will refuse every request of an agent;"
            " /v1/completions works"
        ]
    return []
