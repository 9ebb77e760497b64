"""Check that a model's name is a directory with its files, or may be a name on the hub."""

from __future__ import annotations

from pathlib import Path

from ...config import Config
from ...config.paths import can_only_be_path, local_path, query_path, shorten
from ...config.ranks import runs_here
from ...config.recipe_paths import RULE
from ...data.hub import is_cached, offline_by
from ...errors import ConfigError
from .weights import check_weights


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
