"""What the imports of OpenRLHF, verl and TRL set, look for and say alike."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...algorithms.losses import LOSSES
from ...algorithms.losses.base import MAX_SEQUENCE_CLIP
from ...errors import ConfigError
from .bash_script import readable
from .recipe_draft import Draft

_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")
"""Numbers that YAML 1.1 reads as text: 1e-6 has no dot, or no sign in its exponent."""
CALLS_OF_A_RESPONSE = 16
"""env.max_calls where the other project bounds them by the length alone."""


def set_run_dir(draft: Draft, name: str) -> None:
    """Set the run directory, which is called like the script or the experiment."""
    directory = re.sub(r"[^\w.-]+", "_", readable(name)).strip("_") or "run"
    draft.set("run_dir", f"runs/{directory}", "everything that the run writes")


def set_no_tool(draft: Draft) -> None:
    """Set the environment of a command without tools: one response to each prompt."""
    draft.set("env.name", "echo", "no tool: the environment is never called")
    draft.set("env.protocol", "plain", "a response is one text, which the model ends")
    draft.set("env.max_calls", 0)


def set_tools(draft: Draft, file: str, why: str = "") -> None:
    """Set the environment of a command with tools of a file; how calls are written is for the caller to set."""
    draft.set("env.name", "tools")
    draft.set("env.file", file, why)
    draft.set("env.protocol", "messages", "the model's own chat template renders calls and replies")


def existing_path(name: str, directories: Iterable[Path]) -> Path | None:
    """Return the absolute path of the file or directory that a relative path names, the first that there is.

    Args:
        name: A path; `~` is the home directory.
        directories: Where it may begin, the likeliest first.
    """
    expanded = os.path.expanduser(name)
    for directory in directories:
        path = directory / expanded
        try:
            if path.exists():
                return Path(os.path.normpath(path.absolute()))
        except OSError:  # too long for a path
            continue
    return None


def yaml_table(path: Path) -> dict[str, Any]:
    """Return the table in a YAML or JSON file, with numbers such as 1e-6 as numbers; {} for a file that holds none.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} is no YAML that can be read: {str(e).splitlines()[0]}. Correct it.") from None
    return table_of_yaml(text, str(path))


def table_of_yaml(text: str, name: str) -> dict[str, Any]:
    """Return the table in a text of YAML, as `yaml_table` does; `name` is its file.

    Raises:
        ConfigError: It is no YAML.
    """
    import yaml

    try:
        table = yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise ConfigError(f"{name} is no YAML that can be read: {str(e).splitlines()[0]}. Correct it.") from None
    return with_numbers(table) if isinstance(table, dict) else {}


def written_text(name: str, files: Mapping[str, str]) -> str | None:
    """Return the text of a file that a bash script writes itself, by its path; None where it writes none."""
    return next((text for path, text in files.items() if os.path.abspath(path) == os.path.abspath(name)), None)


def with_numbers(value: Any) -> Any:
    """Return what a YAML file holds with numbers in place of what YAML 1.1 takes for texts, such as 1e-6."""
    if isinstance(value, dict):
        return {str(key): with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_numbers(item) for item in value]
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def say_not_named(draft: Draft, what: str, setting: str) -> None:
    """Say that a command leaves open what no run can do without."""
    draft.differs(f"The command names no {what}: set {setting}.")


def say_no_file(draft: Draft, option: str) -> None:
    """Say that an option names a file that is not on this machine."""
    draft.differs(f"{option}: no such file here. Correct the path in the recipe before the run.")


def say_wandb_key(draft: Draft, option: str) -> None:
    """Say how W&B is switched on: its key stands in no script."""
    draft.differs(f'{option}: set logger.wandb.key = "env" where WANDB_API_KEY is set; the recipe runs without.')


def say_wide_clip(draft: Draft) -> None:
    """Say that the clip range, which stays the command's, is one for ratios of tokens, and those of sequences are
    clipped."""
    name = draft.settings["actor.policy_loss_type"]
    clip = draft.settings["actor.eps_clip_low_high"]
    if LOSSES[name].over_sequences and max(clip) >= MAX_SEQUENCE_CLIP:
        draft.differs(
            f"actor.eps_clip_low_high = {clip}: kept, and it clips almost nothing of a response's ratio, which stays"
            f" near 1. The range of {name}'s paper is 3e-4 4e-4."
        )


def say_warm_up(draft: Draft, option: str, steps: Any, setting: str) -> None:
    """Say that a number of steps is no share, which `setting` takes, of a run whose length is not known."""
    draft.differs(f"{option}={steps}: a share of the updates here, and their number is not known. Set {setting}.")
