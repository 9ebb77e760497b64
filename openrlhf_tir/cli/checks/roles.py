"""Checks of the auxiliary models (critic, reference, reward model): they exist, and a reward model has a scalar head.

Headers are read, nothing is loaded.
"""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open

from ...config import Config
from ...engines.reward_model import normalisation
from ...errors import ConfigError
from ...memory.model_size import config_json
from .model import model_directory
from .weights import tensors_of


def check_roles(cfg: Config) -> list[str]:
    """Check the auxiliary models and return facts.

    Raises:
        ConfigError: A model is missing, damaged or of the wrong kind.
    """
    facts = []
    if cfg.needs_reference:
        uses = [f"KL in the {_place(cfg)}"] if cfg.algo.kl.init_coef else []
        if cfg.filter.max_base_ppl is not None:
            uses.append(f"samples of a perplexity above {cfg.filter.max_base_ppl:g} under it are masked")
        facts.append(
            f"reference model: {cfg.actor.model_name_or_path or 'the policy that the run starts from'},"
            f" {', '.join(uses)}"
        )
    if critic := cfg.critic.model_name_or_path:
        _, remarks = model_directory(cfg, critic, "critic.model_name_or_path")
        facts += remarks
    if reward := cfg.reward.model_name_or_path:
        path, remarks = model_directory(cfg, reward, "reward.model_name_or_path")
        facts += remarks
        if path is None:
            return facts
        _check_head(path, f"{cfg.ds.value_head_prefix}.weight")
        if cfg.reward.normalize_enable:
            config = config_json(reward)
            normalisation(cfg, config.get("mean"), config.get("std"))
    return facts


def _place(cfg: Config) -> str:
    return f"loss ({cfg.algo.kl.estimator})" if cfg.algo.kl.use_loss else f"reward ({cfg.algo.kl.estimator})"


def _check_head(path: Path, head: str) -> None:
    """Check that the tensor `head` of a reward model has one row, unless its weights are no safetensors.

    Raises:
        ConfigError: It has not.
    """
    setting = "reward.model_name_or_path"
    tensors = tensors_of(path, setting)
    if not tensors:
        return
    if head not in tensors:
        raise ConfigError(
            f"{setting} = {str(path)!r} has no scalar head: {head} is not among its weights. Give a"
            " sequence classifier of one label, as openrlhf's train_rm makes them; ds.value_head_prefix names its head."
        )
    with safe_open(path / tensors[head], "numpy") as weights:
        rows = weights.get_slice(head).get_shape()[0]
    if rows != 1:
        raise ConfigError(
            f"{setting} = {str(path)!r} has no scalar head: {head} is of {rows} rows. Give a sequence"
            " classifier of one label, as openrlhf's train_rm makes them."
        )
