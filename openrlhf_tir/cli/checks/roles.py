"""Checks of the auxiliary models (critic, reference, reward model): they exist, and a reward model has a scalar head.

Headers are read, nothing is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open

from ...config import Config
from ...config.paths import local_path, query_path
from ...engines.reward_model import checked_normalisation
from ...errors import ConfigError
from ...memory.model_size import config_json
from .hub_name import check_hub_name
from .weights import check_weights


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
        _, remarks = _directory(cfg, critic, "critic.model_name_or_path")
        facts += remarks
    path = None
    if reward := cfg.reward.model_name_or_path:
        path, remarks = _directory(cfg, reward, "reward.model_name_or_path")
        facts += remarks
    if reward and path:
        try:
            shapes = dict(_head_shapes(path, cfg.ds.value_head_prefix))
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ConfigError(
                f"reward.model_name_or_path = {reward!r} holds weights that cannot be read ({error})."
                " Download or save it again."
            ) from error
        if shapes and 1 not in shapes.values():
            raise ConfigError(
                f"reward.model_name_or_path = {reward!r} has no scalar head: {cfg.ds.value_head_prefix}.weight is of"
                f" {next(iter(shapes.values()))} rows. Give a sequence classifier of one label,"
                " as openrlhf's train_rm makes them."
            )
        if not shapes and any(path.glob("*.safetensors")):
            raise ConfigError(
                f"reward.model_name_or_path = {reward!r} has no scalar head: {cfg.ds.value_head_prefix}.weight is not"
                " among its weights. Give a sequence classifier of one label, as openrlhf's train_rm makes them;"
                " ds.value_head_prefix names its head."
            )
        if cfg.reward.normalize_enable:
            config = config_json(reward)
            checked_normalisation(cfg, config.get("mean"), config.get("std"))
    return facts


def _place(cfg: Config) -> str:
    return f"loss ({cfg.algo.kl.estimator})" if cfg.algo.kl.use_loss else f"reward ({cfg.algo.kl.estimator})"


def _directory(cfg: Config, name: str, setting: str) -> tuple[Path | None, list[str]]:
    """Return a model's directory; None with a fact for a name that looks like one on the hub."""
    path = local_path(name, setting)
    if not query_path(path, Path.is_dir, setting):
        return None, [check_hub_name(cfg, name, path, setting)]
    if not (path / "config.json").is_file():
        raise ConfigError(f"{path} has no config.json, so it is no model. Point {setting} at a HF model directory.")
    check_weights(path, setting)
    return path, []


def _head_shapes(path: Path, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield (file, rows) of the tensor PREFIX.weight."""
    index = path / "model.safetensors.index.json"
    key = f"{prefix}.weight"
    if index.is_file():
        files = {json.loads(index.read_text())["weight_map"].get(key)}
    else:
        files = {file.name for file in path.glob("*.safetensors")}
    for name in sorted(filter(None, files)):
        with safe_open(path / name, "np") as weights:
            if key in weights.keys():  # noqa: SIM118  it is not a mapping
                yield name, weights.get_slice(key).get_shape()[0]
