"""Prepare: the model's directory and the rows that a run on a packaged model starts from.

run_dir/base                    the Hugging Face directory of the packaged model
run_dir/data/{train,test}.jsonl rows of numbers.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..config import Config
from ..errors import ConfigError
from . import numbers
from .packaged_models import MODELS, find_gguf

BASE = "base"


def check_package(name: str) -> None:
    """Raise ConfigError unless the package of the model `name` is installed and holds the right weights."""
    find_gguf(MODELS[name])


def prepare(cfg: Config, name: str) -> Config:
    """Make what the run needs and return the configuration that names it.

    A model or rows that the configuration names already are taken as they are. What an earlier start of this run has
    made is not made again.

    Args:
        cfg: The run's configuration. Without tool calls (env.max_calls = 0) the rows ask for a number, not for code.
        name: The packaged model, a key of packaged_models.MODELS.

    Raises:
        ConfigError: The package's weights could not be converted.
    """
    actor, data, held_out = cfg.actor, cfg.data, cfg.eval
    if not actor.model_name_or_path:
        directory = cfg.run_dir / BASE
        if not (directory / "config.json").is_file():
            print(f"making the model: {directory}", flush=True)
            _convert(name, directory)
        actor = actor.model_copy(update={"model_name_or_path": str(directory)})
    paths = numbers.write_rows(cfg.run_dir / "data", cfg.train.seed, tool=cfg.env.max_calls > 0)
    if not data.prompt_dataset:
        data = data.model_copy(update={"prompt_dataset": str(paths[0])})
    if not held_out.dataset:
        held_out = held_out.model_copy(update={"dataset": str(paths[1])})
    return cfg.model_copy(update={"actor": actor, "data": data, "eval": held_out})


def _convert(name: str, directory: Path) -> None:
    """Run the command `model` in a process of its own: torch and two copies of the weights leave with it."""
    command = [sys.executable, "-m", "openrlhf_tir.cli", "model", name, "--out", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ConfigError(
            f"The weights of {name} could not be converted to {directory}: {last.removeprefix('ConfigError: ')}"
            f" Run it by hand to see more: openrlhf-tir model {name} --out DIR"
        )
