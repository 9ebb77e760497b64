"""Checks before fine-tuning loads a model: machine, model files, loggers, run directory, and every row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...config import Config, Reward
from ...config.problems import Problems
from ...pipeline.checkpoints import lineage
from ..data.rows import counting
from .host import Machine, check_attention, check_deepspeed, check_gpus, check_loggers
from .model import policy_directory
from .run_dir import check_writable

if TYPE_CHECKING:
    from ...cluster.jobs.sft_inputs import SftInputs


def check_sft(
    cfg: Config, problems: Problems, machine: Machine | None = None
) -> tuple[SftInputs, Path | None, list[str]]:
    """Check a fine-tuning run.

    Args:
        cfg: The configuration.
        problems: Mistakes that were found before, in recipe and flags; they are raised together with those found here.
        machine: The machine; None examines this one.

    Returns:
        The rows as tokens, the checkpoint to continue from, and facts to print.

    Raises:
        ConfigError: Something cannot work; one line each.
        DataError: A row cannot be used.
    """
    machine = machine or Machine()
    facts: list[str] = []
    with problems.caught():
        facts += check_attention(cfg, machine, "sft_cpu")
    # A recipe of RL may have engines and reward models.
    ranks_alone = {"vllm": cfg.vllm.model_copy(update={"num_engines": 0}), "reward": Reward()}
    with problems.caught():
        facts += check_gpus(cfg.model_copy(update=ranks_alone), machine)
    with problems.caught(code="not_installed"):
        check_deepspeed(cfg, machine)
    with problems.caught():
        facts += policy_directory(cfg)[1]
    with problems.caught():
        check_loggers(cfg, machine)
    with problems.caught():
        check_writable(cfg)
        lineage.check_unused(cfg)
    problems.raise_any()  # Raised before the rows, which need the model's tokenizer and may be many.
    from ...cluster.jobs.sft_inputs import load_sft_inputs, resumable

    with counting("read rows") as tick:
        inputs = load_sft_inputs(cfg, tick)
    resume = resumable(cfg, inputs.made_of, inputs.schedule) if cfg.train.resume else None
    return inputs, resume, [*facts, *inputs.facts, *([f"resuming from {resume.name}"] if resume else [])]
