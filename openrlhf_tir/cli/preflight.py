"""Preflight: check everything about a configuration that can be checked before Ray or a model is loaded.

    names in registries -> machine -> model files -> run directory -> data -> environment server

Every fault is a ConfigError or DataError with fact, value and remedy. Only what may be there in a minute (a server that
does not answer, a port in use) is Unavailable, after `train.start_wait_s`. Nothing here imports torch, Ray or vLLM.
"""

from __future__ import annotations

from pathlib import Path

from ..cluster.tokens import check_tokens
from ..config import Config
from ..config.method_summary import method_summary
from ..config.problems import Problems
from ..waiting.backoff import until_available
from .checks.data import check_data
from .checks.engine_args import check_engine_args
from .checks.envs import check_envs
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
    slow_precision,
)
from .checks.learner import check_budget
from .checks.load_elsewhere import load_elsewhere
from .checks.method import check_method
from .checks.model import check_model
from .checks.names import check_names, conventions_of, is_missing, openrlhf_files, own_code
from .checks.roles import check_roles
from .checks.run_dir import check_run_dir, check_writable
from .checks.shadowed import check_shadowed


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
    for place, name in openrlhf_files(cfg):
        with problems.caught(code="user_code"):
            if not is_missing(name):
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
