"""Files and directories of an OpenRLHF command: the user's by absolute paths, the run's below its directory."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from .recipe_draft import Draft
from .shared_settings import existing_path, say_no_file, say_not_named, set_run_dir

DEFAULT = "OpenRLHF's default"
"""The reason of a setting that the command does not say; a recipe's head lists them."""
FILES = (
    *("train.agent_func_path", "reward.remote_url", "data.prompt_dataset", "eval.dataset"),
    *("sft.dataset", "sft.eval_dataset"),
)
MODELS = ("actor.model_name_or_path", "critic.model_name_or_path", "reward.model_name_or_path")
IN_RUN_DIR = {"ckpt.output_dir": "model", "ckpt.path": "ckpt", "logger.tensorboard_dir": "tensorboard"}
"""Directories of a run -> their place in run_dir where the command's is of another machine."""
PLACEHOLDER = ("{", "<", "[", "your", "YOUR", "xxx", "XXX")
"""How a key begins that the reader of an example is to replace."""
CONTAINER = "/openrlhf/"
"""Where OpenRLHF's containers have its checkout, whose files are looked for around the script."""


@dataclass
class Source:
    """Where a command stands."""

    name: str
    """The script's file name, or what stands for it."""
    directories: list[Path] = field(default_factory=list)
    """Where its relative paths may begin, the likeliest first."""


def set_outputs(draft: Draft, source: Source) -> None:
    """Set the run directory, where a run writes in it, and its loggers."""
    set_run_dir(draft, Path(source.name).stem)
    for name, place in IN_RUN_DIR.items():
        if name in draft.settings:
            _set_directory(draft, name, str(draft.settings[name]), place)
    if "logger.tensorboard_dir" not in draft.settings:
        draft.set("logger.tensorboard_dir", None, f"{DEFAULT}: TensorBoard is off")
    if "logger.wandb.key" in draft.settings:
        _set_wandb_key(draft, str(draft.settings["logger.wandb.key"]))
    if draft.settings.get("train.resume_or_start"):
        draft.unset("train.resume")


def _set_directory(draft: Draft, name: str, path: str, place: str) -> None:
    if not path.startswith("/"):
        draft.set(name, os.path.normpath(path), "in run_dir")
        return
    top = Path(*Path(path).parts[:2])
    if not top.is_dir():
        draft.set(name, place, f"was {path}, which is of another machine")
        draft.differs(f"--{name} {path}: {place} in run_dir, as there is no {top} here.")


def _set_wandb_key(draft: Draft, key: str) -> None:
    """Replace a key by the environment's: a recipe holds no secret."""
    if key.strip() and not key.startswith(PLACEHOLDER):
        draft.set("logger.wandb.key", "env", "WANDB_API_KEY: a recipe holds no secret")
        draft.differs('--logger.wandb.key: "env", a recipe holds no secret. Export WANDB_API_KEY.')
        return
    for name in [name for name in draft.settings if name.startswith("logger.wandb.")]:
        draft.unset(name)
    draft.differs(
        f"--logger.wandb.key {key}: left out, it is a placeholder. Export WANDB_API_KEY and set"
        ' logger.wandb.key = "env".'
    )


def set_files(draft: Draft, source: Source) -> None:
    """Name files, data sets and models that are on this machine by absolute paths, wherever the recipe lies."""
    for name in FILES:
        value = draft.settings.get(name)
        if not isinstance(value, str) or value.startswith(("http://", "https://")):
            continue
        parts = [part.strip() for part in value.split(",")]
        found = [found_file(part, source) for part in parts]
        if any(found):
            paths = [str(path or part) for path, part in zip(found, parts, strict=True)]
            draft.set(name, ",".join(paths), draft.why.get(name, ""))
        elif value.endswith(".py"):
            say_no_file(draft, f"--{name} {value}")
    for name in MODELS:
        value = draft.settings.get(name)
        if isinstance(value, str) and (path := found_file(value, source)):
            draft.set(name, str(path), draft.why.get(name, ""))
    if not draft.settings.get("actor.model_name_or_path"):
        say_not_named(draft, "model", "actor.model_name_or_path")


def found_file(name: str, source: Source) -> Path | None:
    """Return the file or directory that a path of the script names on this machine."""
    if "/" not in name and "." not in name:
        return None  # a name of Hugging Face's, which a directory may have by chance
    path = existing_path(name, source.directories)
    if path is None and name.startswith(CONTAINER):
        path = existing_path(name.removeprefix(CONTAINER), source.directories)
    return path
