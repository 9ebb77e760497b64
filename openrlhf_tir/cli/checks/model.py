"""Checks of models: each is a directory with all its files or may be on the hub, and the run can use the policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...config import Config
from ...config.paths import can_only_be_path, local_path, query_path, shorten
from ...config.ranks import runs_here
from ...config.recipe_paths import RULE
from ...data.hub import is_cached, offline_by
from ...errors import ConfigError
from .chat import check_template_of, check_tools_of_endpoint
from .heads import check_heads
from .host import Machine
from .learner import check_lora, check_lora_of_mixture, check_positions, check_routing
from .weights import check_weights


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


def model_directory(cfg: Config, name: str, setting: str, alternative: str = "") -> tuple[Path | None, list[str]]:
    """Return a model's directory; None with a fact for a name that looks like one on the hub.

    Args:
        cfg: The configuration.
        name: The model's name as it is configured.
        setting: The setting that names it.
        alternative: What else may be done if there is no such directory, as the end of a sentence.

    Raises:
        ConfigError: It is no model, or its weights are missing or damaged.
    """
    path = local_path(name, setting)
    if not query_path(path, Path.is_dir, setting):
        return None, [_check_hub_name(cfg, name, path, setting, alternative)]
    if not (path / "config.json").is_file():
        raise ConfigError(f"{path} has no config.json, so it is not a model. Point {setting} at a HF model directory.")
    check_weights(path, setting)
    return path, []


def _check_hub_name(cfg: Config, name: str, path: Path, setting: str, alternative: str) -> str:
    """Return a fact that says where a model will come from that is no directory here.

    Raises:
        ConfigError: The name is a path, or the hub may not be asked and its cache lacks the model.
    """
    looked_at = shorten(str(path.absolute()))
    if can_only_be_path(name) or path.exists() or ("/" in name and path.parent.is_dir()):
        raise ConfigError(
            f"Model directory {name!r} does not exist (looked at {looked_at}). {RULE} Correct {setting}{alternative}.",
            code="no_model",
            setting=setting,
        )
    if is_cached(name):
        return f"model {name} is not a directory here; it is in the hub's cache"
    if runs_here(cfg) and (variable := offline_by()):
        raise ConfigError(
            f"{setting} = {name!r} is not a directory (looked beside the recipe, if it names it, and at {looked_at}),"
            f" and not in the hub's cache, which is the only source while {variable} is set. {RULE} Correct it, or"
            f" download the model first, or unset {variable}.",
            code="no_model",
            setting=setting,
        )
    return f"model {name} is not a directory here; it will be downloaded from the hub"


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
