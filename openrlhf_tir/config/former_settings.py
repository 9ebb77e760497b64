"""Configurations that earlier versions wrote, read as those of today: for a resume, a comparison and a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..user_code.plugins import current_name
from .removed_settings import remedy, shared_name
from .sections.filter import OPTION_OF
from .sections.reward import REDUCTIONS

DECIDED: dict[str, Any] = {
    "data.env_key": "env",
    "env.template_rewrites": "keep",
    "filter.max_verifier_failures": 0.4,
    "filter.zero_variance": True,
    "critic.epochs": None,
    "rollout.agent_overflow": "fail",
    "rollout.per_request_seeds": False,
    "train.env_coef": 1.0,
    "vllm.canary_ceiling": 0.5,
    "vllm.max_model_len": None,
}
"""Removed settings that decided what is sampled or kept -> their former default, by which all runs now go on."""
MOVED_IN_ENV = {"stateful": "server_options", "budget_message": "options"}
"""Former settings of [env] and [envs.NAME], False by default -> the table of the same section that has them now."""
FORMER_LIMITS = {"max_length_gap": None, "max_truncated": 1.0}
"""Former settings of [filter], which are options of it now -> the default, by which the filter was not called."""


def as_today(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration that an earlier version wrote, with the settings that moved where they are now
    and modules that moved by their name of today."""
    environments = {name: env_as_today(section) for name, section in saved.get("envs", {}).items()}
    today = {**_with_options(saved), "env": env_as_today(saved.get("env", {})), "envs": environments}
    actor = saved.get("actor", {})
    if "eps_clip" in actor and actor.get("eps_clip_low_high", ()) is None:
        today["actor"] = {**actor, "eps_clip_low_high": [actor["eps_clip"]] * 2}
    if actor.get("policy_loss"):
        today["actor"] = {**today["actor"], "policy_loss_type": actor["policy_loss"]}
    if saved.get("vllm", {}).get("sync_delta"):
        today["vllm"] = {**saved["vllm"], "sync_backend": "delta"}
    train = saved.get("train", {})
    if train.get("env_mask") is False:
        today["train"] = {**train, "env_mask_from": "never"}
    if train.get("enable_ema") is False:
        today["train"] = {**today["train"], "ema_beta": None}
    return {section: _with_current_names(value) for section, value in today.items()}


def _with_current_names(value: Any) -> Any:
    """Return a setting, or a table of them, in which modules that were moved have their name of today."""
    if isinstance(value, Mapping):  # reward.weights has functions for its keys
        return {current_name(name): _with_current_names(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_current_names(inner) for inner in value]
    return current_name(value) if isinstance(value, str) else value


def without_removed(saved: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a configuration that an earlier version wrote without the settings that are gone.

    Args:
        saved: The tables of the configuration, or of the part of it whose names begin with `prefix`.
        prefix: Dotted name of the table, with a dot behind it.
    """
    left: dict[str, Any] = {}
    for field, value in saved.items():
        if remedy(prefix + field) is None:
            left[field] = without_removed(value, f"{prefix}{field}.") if isinstance(value, Mapping) else value
    return left


def env_as_today(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an earlier version had in [env] or [envs.NAME], with the settings that moved in their new tables."""
    today = {field: value for field, value in _with_options(environment).items() if field not in MOVED_IN_ENV}
    for field, table in MOVED_IN_ENV.items():
        if environment.get(field):
            today[table] = {field: environment[field], **(today.get(table) or {})}
    return today


def _with_options(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return [reward] and [filter], or those of an environment, with the settings that are options now as options."""
    today = dict(tables)
    if "env_reduce" in (reward := tables.get("reward") or {}):
        today["reward"] = {field: value for field, value in reward.items() if field != "env_reduce"}
        options, weights = reward.get("options") or {}, reward.get("weights") or {}
        reduce = {"reduce": reward["env_reduce"]}
        if reward["env_reduce"] != REDUCTIONS[0] and "env" in (weights or [reward.get("name", "env")]):
            own = {"env": {**options.get("env", {}), **reduce}} if weights else reduce
            today["reward"]["options"] = {**options, **own}
    if FORMER_LIMITS.keys() & (filters := tables.get("filter") or {}).keys():
        today["filter"] = {field: value for field, value in filters.items() if field not in FORMER_LIMITS}
        called = filters.get("names") or ()
        limits = {
            option: filters[option]
            for name, option in OPTION_OF.items()
            if filters.get(option) is not None and (filters[option] != FORMER_LIMITS[option] or name in called)
        }
        if limits:
            today["filter"]["options"] = {**(filters.get("options") or {}), **limits}
    return today


def decided_otherwise(name: str, value: Any) -> bool:
    """Return True if a removed setting had a value by which other responses were sampled or kept than now."""
    return value is not None and value != DECIDED.get(shared_name(name), value)
