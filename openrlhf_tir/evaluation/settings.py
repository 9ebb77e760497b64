"""The settings under which a suite is sampled. Items of different settings are never mixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..config import Config
from ..config.former_settings import env_as_today
from ..config.own_files import by_content
from ..config.removed_settings import remedy
from ..errors import ConfigError, unknown

SWEPT = {
    "env.max_calls": "max_calls",
    "eval.n_samples_per_prompt": "n",
    "eval.temperature": "temperature",
    "eval.top_p": "top_p",
}
"""Settings that a sweep may vary without new engines: setting -> field of `Sampled`."""
IRRELEVANT_FIELDS = {
    "url",
    "step_timeout_s",
    "max_concurrency",
    "workers",
    "remote_batch",
    "model_replicas",
    "num_nodes",
}
"""Fields of [env] and [reward] that never change what an item is: at worst they lose a sample, which is sampled again.
Every other field counts, also one that is added to these sections later."""
WEIGHTS = ("*.safetensors", "*.bin")
"""Patterns of the files that hold weights."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """How a problem is sampled.

    Attributes:
        n: Number of samples.
        temperature: Softmax temperature; 0 is greedy.
        top_p: Nucleus sampling.
        max_calls: Largest number of calls; None for the setting of the problem's environment.
    """

    n: int
    temperature: float
    top_p: float = 1.0
    max_calls: int | None = None

    @classmethod
    def of(cls, cfg: Config) -> Sampled:
        """Return the values of the [eval] section."""
        return cls(cfg.eval.n_samples_per_prompt, cfg.eval.temperature, cfg.eval.top_p, cfg.eval.max_calls)


def parse_sweep(text: str, base: Sampled) -> tuple[str, list[Sampled]]:
    """Return the setting of a --sweep and the sampling of each of its values, in ascending order.

    Args:
        text: `KEY=V,V,...`.
        base: The sampling without the sweep.

    Raises:
        ConfigError: The setting or a value cannot be swept.
    """
    key, _, values_text = text.partition("=")
    if key not in SWEPT:
        raise unknown("--sweep key", key, SWEPT, "Write it as KEY=V,V, e.g. --sweep env.max_calls=0,2,4,20.")
    number_type = int if key in ("env.max_calls", "eval.n_samples_per_prompt") else float
    try:
        values = sorted({number_type(value) for value in values_text.split(",")})
    except ValueError:
        raise ConfigError(
            f"--sweep {text!r} has a value of {key} that is not a number. Write e.g. --sweep env.max_calls=0,2,4,20."
        ) from None
    lowest = {"env.max_calls": 0, "eval.n_samples_per_prompt": 1}.get(key, 0)
    for value in values:
        in_range = 0 < value <= 1 if key == "eval.top_p" else lowest <= value < float("inf")
        if not in_range:
            raise ConfigError(f"--sweep {text!r}: {value} is not a possible value of {key}. Correct it.")
    if len(values) < 2:
        raise ConfigError(f"--sweep {text!r} has one value. Give two or more, or set --{key}.")
    change: Callable[..., Sampled] = replace
    return key, [change(base, **{SWEPT[key]: value}) for value in values]


def made_under(cfg: Config, sampling: Sampled, suite: str, source: str) -> dict[str, Any]:
    """Return everything that decides what an item is, as values that JSON can hold.

    Args:
        cfg: The configuration.
        sampling: How the problems are sampled.
        suite: Name of the suite.
        source: Digest of the problems.
    """
    return {
        "suite": suite,
        "problems": source,
        "model": cfg.actor.model_name_or_path,
        "weights": weights_of(cfg.actor.model_name_or_path),
        **asdict(sampling),
        "seed": cfg.train.seed,
        "max_new_tokens": cfg.rollout.max_new_tokens,
        "max_len": cfg.data.max_len,
        "input_template": cfg.data.input_template,
        "apply_chat_template": cfg.data.apply_chat_template,
        "rendered": cfg.data.rendered,
        "chat_template_options": dict(cfg.data.chat_template_options),
        "agent": [cfg.rollout.agent, cfg.train.agent_func_path],
        "engine": [cfg.rollout.engine, cfg.vllm.dtype],
        "engine_args": dict(cfg.vllm.engine_args),
        "env": {
            name: {
                **environment.env.model_dump(mode="json", exclude=IRRELEVANT_FIELDS),
                "max_calls": environment.env.max_calls if sampling.max_calls is None else sampling.max_calls,
                "input_template": environment.input_template,
                "reward": environment.reward.model_dump(mode="json", exclude=IRRELEVANT_FIELDS),
            }
            for name, environment in sorted(cfg.environments.items())
        },
    }


def weights_of(model: str) -> list[list[Any]]:
    """Return [name, bytes, modification time in ns] of each file of weights of a local model; [] for a name on the hub.

    A directory whose weights were trained further holds another model, although its name is the same.
    """
    if not model:
        return []
    files = sorted(path for pattern in WEIGHTS for path in Path(model).expanduser().glob(pattern))
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]


def differences(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Return a phrase for every setting that differs. Nested names are dotted.

    Args:
        now: The settings.
        before: The earlier settings, perhaps of an earlier version.
    """
    before = dict(before)
    if before.get("env"):
        before["env"] = {name: _in_todays_settings(environment) for name, environment in before["env"].items()}
    if before.get("engine"):
        before["engine"] = before["engine"][:2]  # the third was vllm.max_model_len
    return _differences(_by_content(now), _by_content(before), "")


def _by_content(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of `made_under` in which files of user code are named by their content: each command works with
    copies in a directory of its own."""
    changed = dict(settings)
    if settings.get("env"):
        changed["env"] = by_content({"envs": settings["env"]})["envs"]
    if settings.get("agent"):
        who, file = settings["agent"]
        changed["agent"] = [who, by_content({"train": {"agent_func_path": file}})["train"]["agent_func_path"]]
    return changed


def _in_todays_settings(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an environment as this version has them.

    Settings that moved are in their new tables. Those of [env] and [reward] that were removed are left out: now all
    runs have the same value of them, so that no change of a setting brings the earlier one back.
    """
    kept = {field: value for field, value in env_as_today(environment).items() if not remedy(f"env.{field}")}
    if "reward" in kept:
        kept["reward"] = {name: value for name, value in kept["reward"].items() if not remedy(f"reward.{name}")}
    return kept


def _differences(now: Mapping[str, Any], before: Mapping[str, Any], prefix: str) -> list[str]:
    """Return a phrase for every setting that differs; its name begins with `prefix`."""
    changes = []
    for key in sorted({*now, *before}):
        old = before.get(key)
        new = now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changes += _differences(new, old, f"{prefix}{key}.")
        elif old != new:
            changes.append(f"{prefix}{key}: {old!r} then, {new!r} now")
    return changes
