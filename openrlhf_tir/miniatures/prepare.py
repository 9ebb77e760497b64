"""Prepare: the model's directory and the rows that a run on a packaged model starts from.

run_dir/base                    the Hugging Face directory of the packaged model
run_dir/data/*.jsonl            rows of the task, and what its environment serves
run_dir/cold_start/model        the model after the task's demonstrations, where it has some
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from ..config import Config
from ..config.settings import to_toml
from ..errors import ConfigError
from .packaged_models import MODELS, find_gguf
from .tasks import Prepared, RealTask

BASE, DATA, COLD_START = "base", "data", "cold_start"


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


def prepare(cfg: Config, name: str, task: RealTask) -> Config:
    """Make what the run needs and return the configuration that names it.

    A model or rows that the configuration names already are taken as they are. What an earlier start of this run has
    made is not made again.

    Args:
        cfg: The run's configuration.
        name: The packaged model, a key of packaged_models.MODELS.
        task: What it is to learn.

    Raises:
        ConfigError: The package's weights could not be converted, or the cold start failed.
    """
    cfg, files = with_rows(cfg, task, cfg.run_dir / DATA)
    if cfg.actor.model_name_or_path:
        return cfg
    directory = cfg.run_dir / BASE
    if not (directory / "config.json").is_file():
        print(f"making the model: {directory}", flush=True)
        _convert(name, directory)
    if files.demonstrations is not None:
        cold_start = cfg.run_dir / COLD_START
        if not (cold_start / "model" / "config.json").is_file():
            print(f"cold start, fine-tuning on {files.demonstrations}: {cold_start / 'model'}", flush=True)
            _fine_tune(cfg, directory, files.demonstrations, cold_start)
        directory = cold_start / "model"
    return cfg.model_copy(update={"actor": cfg.actor.model_copy(update={"model_name_or_path": str(directory)})})


def _convert(name: str, directory: Path) -> None:
    """Run the command `model` in a process of its own: torch and two copies of the weights leave with it."""
    wrong = _run("model", name, "--out", str(directory))
    if wrong is not None:
        raise ConfigError(
            f"The weights of {name} could not be converted to {directory}: {wrong}"
            f" Run it by hand to see more: openrlhf-tir model {name} --out DIR"
        )


def _fine_tune(cfg: Config, base: Path, rows: Path, directory: Path) -> None:
    """Run the command `sft` with the run's own settings. What a fine-tuning that was stopped has left is deleted."""
    if directory.exists():
        shutil.rmtree(directory)
    recipe = cfg.run_dir / f"{COLD_START}.toml"
    recipe.write_text(to_toml(cfg), encoding="utf-8")
    wrong = _run(
        "sft", "--recipe", str(recipe), "--run-dir", str(directory), "--actor.model_name_or_path", str(base),
        "--sft.dataset", str(rows), "--ckpt.save_steps", "-1",
    )  # fmt: skip
    if wrong is not None:
        raise ConfigError(
            f"The cold start on {rows} failed: {wrong} Run it by hand to see more: openrlhf-tir sft --recipe {recipe}"
            f" --run-dir DIR --actor.model_name_or_path {base} --sft.dataset {rows}"
        )


def _run(*command: str) -> str | None:
    """Run a command of ours and return the last line of its error; None if it succeeded."""
    line = [sys.executable, "-m", "openrlhf_tir.cli", *command]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return last.removeprefix("ConfigError: ")
