"""Cold start: fine-tune a model on a task's demonstrations before RL, by the command `sft` in a process of its own.

    checkpoint of an earlier start? resume : anew  ->  sft  ->  DIRECTORY/model, DIRECTORY/sft.json

A process of its own gives the memory of the learner back before the run starts. It shows its own progress, is stopped
in good order when this process is, and ends if this process is killed; a stopped fine-tuning leaves a checkpoint, from
which the next start goes on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openrlhf_tir import errors
from openrlhf_tir.config import Config
from openrlhf_tir.config.secrets import without_keys
from openrlhf_tir.config.settings import to_toml
from openrlhf_tir.errors import ConfigError, DataError, DeadlineMissed, Diverged, InfraError, Stopped, Unavailable

from .end_process import end_process

DIRECTORY = "cold_start"
"""Directory of the cold start inside the run directory."""
MODEL = "model"
FINISHED = "sft.json"
"""The summary that `sft` writes last: if it is there, the model is whole."""
POLL_S = 0.5
"""Seconds between two looks at the fine-tuning's process."""
CLOSE_S = 60.0
"""Seconds that a stopped fine-tuning may take beyond train.stop_grace_s, to end Ray."""
PASSED_ON = (
    ConfigError,
    DataError,
    errors.CheckpointDamaged,
    Diverged,
    errors.MethodBroken,
    errors.Unproductive,
    Stopped,
    Unavailable,
)
"""Errors of `sft` that are this process's errors too. All others are faults of the infrastructure."""


def cold_start(cfg: Config, base: Path, rows: Path, number: int) -> Path:
    """Fine-tune `base` on demonstrations and return the directory of the model.

    What an earlier start of this run has finished is not made again, unless train.overwrite asks for it; what it has
    begun is resumed.

    Args:
        cfg: The run's configuration, whose `sft` section counts.
        base: The model to start from.
        rows: The demonstrations.
        number: How many of them are learned from.

    Raises:
        ConfigError: The fine-tuning cannot work, or an earlier start of this run had other settings.
        DeadlineMissed: It made no progress for timeouts.start_s + timeouts.learner_s.
        Stopped: It was stopped.
        InfraError: It failed for another reason.
    """
    directory = cfg.run_dir / DIRECTORY
    model = directory / MODEL
    if cfg.train.overwrite and not cfg.train.resume and directory.exists():
        shutil.rmtree(directory)
    if (directory / FINISHED).is_file() and (model / "config.json").is_file():
        _check_same(directory, cfg, base, number)
        print(f"cold start: {model} is there already", flush=True)
        return model
    recipe = cfg.run_dir / f"{DIRECTORY}.toml"
    recipe.write_text(to_toml(without_keys(cfg)), encoding="utf-8")
    words = [
        "sft", "--recipe", str(recipe), "--run-dir", str(directory), "--actor.model_name_or_path", str(base),
        "--sft.dataset", str(rows), "--data.max_samples", str(number),
        "--ckpt.max_num", str(cfg.ckpt.max_num or 1),  # fine-tuning has a checkpoint where the run writes none
    ]  # fmt: skip
    checkpoints = directory / cfg.ckpt.path
    # An earlier start that is still ending, since its parent was killed, holds the directory's lock meanwhile.
    how = ["--train.start_wait_s", str(max(cfg.train.start_wait_s, cfg.train.stop_grace_s + CLOSE_S))]
    how.append("--resume" if (checkpoints / "latest").exists() else "--train.overwrite")
    print(f"cold start: fine-tuning on {number} demonstrations of {rows}", flush=True)
    run_watched(
        [sys.executable, "-m", "openrlhf_tir.cli", *words, *how, "--die-with-parent", str(os.getpid())],
        log=cfg.run_dir / f"{DIRECTORY}.log",
        progress=lambda: _size(directory / "metrics.jsonl"),
        quiet_s=cfg.timeouts.start_s + cfg.timeouts.learner_s,
        grace_s=cfg.train.stop_grace_s + CLOSE_S,
        by_hand=f"openrlhf-tir {' '.join(words)}",
    )
    shutil.rmtree(checkpoints, ignore_errors=True)  # six times the model's size, and of no more use
    return model


def run_watched(
    command: list[str],
    *,
    log: Path,
    progress: Callable[[], Any],
    quiet_s: float,
    grace_s: float,
    by_hand: str = "",
    poll_s: float = POLL_S,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run the fine-tuning's process to its end.

    Its standard output is this process's, so that a person sees its progress; its standard error goes to `log`.

    Args:
        command: The command line.
        log: Where its standard error goes.
        progress: Returns a value that changes whenever the process has made progress.
        quiet_s: Seconds without progress after which the process is ended.
        grace_s: Seconds that it has to end after it was told to; then it is killed, with what it started.
        by_hand: The command for a person who wants to see more.
        poll_s: Seconds between two looks.
        clock: Returns seconds.

    Raises:
        TirError: The process failed; its own error if that is one of PASSED_ON.
        DeadlineMissed: It made no progress for `quiet_s`, and was ended.
    """
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=errors, start_new_session=True)
        try:
            code = _wait(process, progress, quiet_s, poll_s, clock)
        finally:
            end_process(process, grace_s)
    if code is None:
        raise DeadlineMissed(
            f"The cold start made no progress for {quiet_s:g} s (timeouts.start_s + timeouts.learner_s) and was ended."
            f" Look at {log}, or raise one of them; the same command with --resume goes on."
        )
    if code:
        raise _error_of(code, log, by_hand)


def _wait(
    process: subprocess.Popen, progress: Callable[[], Any], quiet_s: float, poll_s: float, clock: Callable[[], float]
) -> int | None:
    """Return the exit code; None if there was no progress for `quiet_s`."""
    latest = progress()
    since = clock()
    while True:
        try:
            return process.wait(poll_s)
        except subprocess.TimeoutExpired:
            pass
        value = progress()
        if value != latest:
            latest = value
            since = clock()
        elif clock() - since > quiet_s:
            return None


def _error_of(code: int, log: Path, by_hand: str) -> Exception:
    """Return the error of a process that ended with `code`: the last line of its log that begins with an error's name.

    An error of several mistakes goes on in the lines below, and libraries may write after it.
    """
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it said nothing"]
    for index in reversed(range(len(lines))):
        name, _, text = lines[index].partition(": ")
        error = getattr(errors, name, None) if name.isidentifier() else None
        if isinstance(error, type) and issubclass(error, Exception):
            kind = next((kind for kind in PASSED_ON if issubclass(error, kind)), None)
            text = " ".join([text if kind else lines[index], *lines[index + 1 :]])
            break
    else:
        kind, text = None, lines[-1]
    if kind is Stopped:
        return Stopped(f"The cold start was stopped: {text} The same command with --resume goes on.")
    reason = text if kind is not None else f"{text} (exit code {code})."
    remedy = f" Run it by hand to see more: {by_hand}" if by_hand else ""
    return (kind or InfraError)(f"The cold start failed: {reason} Its log is {log}.{remedy}")


def _check_same(directory: Path, cfg: Config, base: Path, number: int) -> None:
    """Raise ConfigError if the finished cold start had another base model or other settings."""
    settings = tomllib.loads((directory / "config.toml").read_text(encoding="utf-8"))
    begun_from = settings["actor"]["model_name_or_path"]
    if Path(begun_from).resolve() != base.resolve():  # another spelling of --run-dir is no other model
        raise ConfigError(
            f"The cold start in {directory} was made from {begun_from}, and now {base} is asked for. Give that model,"
            " another --run-dir, or --train.overwrite to begin anew.",
            code="resume",
            setting="actor.model_name_or_path",
        )
    made = {"max_samples": settings["data"]["max_samples"], **settings["sft"]}  # [sft] had it in earlier versions
    wanted = {**cfg.sft.model_dump(mode="json", exclude={"dataset"}, exclude_none=True), "max_samples": number}
    names = {"max_samples": "--cold-start"}
    for key, value in wanted.items():
        if made.get(key) != value:
            setting = names.get(key, f"--sft.{key}")
            raise ConfigError(
                f"The cold start in {directory} was made with {setting} {made.get(key)}, and now {value} is asked for."
                f" Give {made.get(key)}, another --run-dir, or --train.overwrite to begin anew.",
                code="resume",
            )


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1
