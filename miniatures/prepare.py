"""Prepare: the model's directory and the rows that a run on a packaged model starts from.

run_dir/base                    the Hugging Face directory of the packaged model
run_dir/data/*.jsonl            rows of the task, and what its environment serves
run_dir/cold_start/model        the model after the task's demonstrations, if there is a cold start
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError

from .cold_start import cold_start
from .packaged_models import MODELS, find_gguf
from .tasks import Prepared, RealTask

BASE = "base"
DATA = "data"
CONVERSION_S = 1800.0
"""Deadline of a conversion in seconds; it takes one minute."""


def check_package(name: str) -> None:
    """Raise ConfigError unless the package of the model `name` is installed and holds the right weights."""
    find_gguf(MODELS[name])


def with_rows(cfg: Config, task: RealTask, directory: Path) -> tuple[Config, Prepared]:
    """Write the task's files to `directory` and return the configuration that names them, and the files.

    Rows and server options that the configuration names already are taken as they are.
    """
    files = task.write(directory, cfg)
    data, held_out, env = cfg.data, cfg.eval, cfg.env
    if not data.prompt_dataset:
        data = data.model_copy(update={"prompt_dataset": str(files.train)})
    if not held_out.dataset:
        held_out = held_out.model_copy(update={"dataset": str(files.test)})
    if files.server_options:
        env = env.model_copy(update={"server_options": files.server_options | env.server_options})
    return cfg.model_copy(update={"data": data, "eval": held_out, "env": env}), files


def with_shape(cfg: Config, name: str, directory: Path) -> Config:
    """Return the configuration with a directory that holds the sizes of the packaged model `name`, and no weights.

    What a run on it needs can be planned before the model is made.
    """
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(MODELS[name].shape), encoding="utf-8")
    return _with_model(cfg, directory)


def _with_model(cfg: Config, model: Path) -> Config:
    return cfg.model_copy(update={"actor": cfg.actor.model_copy(update={"model_name_or_path": str(model)})})


def prepare(cfg: Config, name: str, task: RealTask, demonstrations: int) -> Config:
    """Make what the run needs and return the configuration that names it.

    A model or rows that the configuration names already are taken as they are. What an earlier start of this run has
    made is not made again.

    Args:
        cfg: The run's configuration.
        name: The packaged model, a key of packaged_models.MODELS.
        task: What it is to learn.
        demonstrations: Rows of the cold start; 0: there is none.

    Raises:
        ConfigError: The package's weights could not be converted, or the cold start cannot work.
        TirError: The cold start failed.
    """
    cfg, files = with_rows(cfg, task, cfg.run_dir / DATA)
    model = Path(cfg.actor.model_name_or_path or cfg.run_dir / BASE)
    if not cfg.actor.model_name_or_path and not has_base(cfg):
        print(f"making the model: {model}", flush=True)
        _convert(name, model)
    if demonstrations:
        model = cold_start(cfg, model, files.demonstrations, demonstrations)
    return _with_model(cfg, model)


def has_base(cfg: Config) -> bool:
    """Return True if the run directory holds the packaged model already."""
    return (cfg.run_dir / BASE / "config.json").is_file()


def _convert(name: str, directory: Path) -> None:
    """Run the command `model` in a process of its own: torch and two copies of the weights leave with it."""
    wrong = _run("model", name, "--out", str(directory))
    if wrong is not None:
        raise ConfigError(
            f"The weights of {name} could not be converted to {directory}: {wrong}"
            f" Run it by hand to see more: openrlhf-tir model {name} --out DIR"
        )


def _run(*command: str) -> str | None:
    """Run a command of ours and return the last line of its error; None if it succeeded."""
    line = [sys.executable, "-m", "openrlhf_tir.cli", *command]
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=CONVERSION_S)
    except subprocess.TimeoutExpired:
        return f"it has not ended after {CONVERSION_S:g} s."
    if done.returncode == 0:
        return None
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return last.removeprefix("ConfigError: ")
