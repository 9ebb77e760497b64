"""What a run shows and keeps: evaluation, checkpoints, logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from ..setting import ALLOWED, Condition, Fault, Resume, rule, setting
from .base import Section
from .conditions import TURN_LOOP

if TYPE_CHECKING:
    from ..schema import Config

OF_AVERAGE = "_ema"
"""Suffix of the export (ckpt.output_dir) of the weights' average (train.ema_beta)."""
OF_CRITIC = "_critic"
"""Suffix of the export of the critic (critic.save_value_network)."""

WITH_WANDB = Condition(
    "with logger.wandb.key, which starts a wandb run",
    lambda c: c.logger.wandb.key is not None,
)
WITH_EVALUATION = Condition("with held-out problems in eval.dataset", lambda c: c.eval.dataset is not None)
WITH_HELD_OUT = Condition(
    "with held-out problems in eval.dataset, or rows in sft.eval_dataset",
    lambda c: c.eval.dataset is not None or bool(c.sft.eval_dataset),
)


class LoggerWandb(Section):
    """Weights & Biases."""

    RESUME: ClassVar[Resume] = ALLOWED
    FINE_TUNING: ClassVar[bool] = True

    key: str | None = setting(
        None,
        description=(
            "Starts a wandb run: an API key; 'env' to use WANDB_API_KEY; 'login' for the key that `wandb login` has"
            " stored; or 'offline', which needs no key and no network, and writes run_dir/wandb, which `wandb sync`"
            " uploads later. Unset: no wandb run."
        ),
        openrlhf=True,
    )
    org: str | None = setting(None, description="Team or user.", active_when=WITH_WANDB, openrlhf=True)
    group: str | None = setting(None, description="Group of the run.", active_when=WITH_WANDB, openrlhf=True)
    project: str = setting("openrlhf_tir", description="Project.", active_when=WITH_WANDB, openrlhf=True)
    run_name: str | None = setting(None, description="Name of the run.", active_when=WITH_WANDB, openrlhf=True)


class Eval(Section):
    """Evaluations on held-out problems, read as those of data.prompt_dataset or, with other columns, by these."""

    dataset: str | None = setting(
        None,
        description="Held-out problems: a file, a directory or a name, as data.prompt_dataset. Unset: no evaluation.",
        short="held-out problems",
        openrlhf=True,
        names="input_files",
    )
    split: str = setting(
        "test",
        description="Split of a data set that is loaded by name.",
        active_when=WITH_HELD_OUT,
        openrlhf=True,
        fine_tuning=True,
    )
    steps: int = setting(
        -1,
        ge=-1,
        description="Evaluate every so many updates. -1: only before the first and after the last.",
        unit="updates",
        openrlhf=True,
        fine_tuning=True,
    )
    n_samples_per_prompt: int = setting(4, ge=1, description="Responses to each problem.", openrlhf=True)
    temperature: float = setting(1.0, ge=0, description="Sampling temperature; 0 is greedy.", openrlhf=True)
    top_p: float = setting(1.0, gt=0, le=1, description="Top-p sampling in evaluations.")
    max_calls: int | None = setting(
        None,
        ge=0,
        description="Tool calls that a response may make in evaluations. Unset: the environment's.",
        unit="calls",
        active_when=TURN_LOOP,
    )
    max_samples: int = setting(
        100_000_000,
        ge=1,
        description="Number of first problems of eval.dataset to use. Default: all.",
        unit="problems",
        active_when=WITH_EVALUATION,
    )
    wait: bool = setting(
        False,
        description=(
            "Let the learner wait for the figures. Else it trains on as far as pipeline.max_staleness allows before the"
            " next push, which waits; it first copies its state if the figures may make a best checkpoint"
            " (ckpt.best_metric_key). In mode sync it always waits."
        ),
    )


class Ckpt(Section):
    """Checkpoints and exported models."""

    RESUME: ClassVar[Resume] = ALLOWED

    path: str = setting(
        "ckpt",
        description="Directory of resumable checkpoints, relative to run_dir.",
        openrlhf=True,
        fine_tuning=True,
    )
    save_steps: int = setting(
        20,
        ge=-1,
        description="Save a checkpoint every so many updates. -1: only the last one.",
        unit="updates",
        openrlhf=True,
        fine_tuning=True,
    )
    max_num: int = setting(
        2,
        ge=0,
        description=(
            "Checkpoints to keep, besides the best by evaluation. 0: none is written, not even the best: a run that"
            " dies starts anew, and exports of save_hf are what is left."
        ),
        openrlhf=True,
        fine_tuning=True,
    )
    save_hf: bool = setting(
        False,
        description="At every save_steps also export a HF model, step_000020_hf in path. Exports are never deleted.",
        active_when=Condition("with ckpt.save_steps >= 1, not -1", lambda c: c.ckpt.save_steps >= 1),
        openrlhf=True,
    )
    best_metric_key: str = setting(
        "eval/accuracy",
        description=(
            "Evaluation metric whose highest value makes the best checkpoint, which is kept and exported to"
            " <output_dir>_best. 'none': no best checkpoint."
        ),
        openrlhf=True,
    )
    output_dir: str = setting(
        "model",
        description="Directory of the final HF export, relative to run_dir.",
        openrlhf=True,
        fine_tuning=True,
    )


class Logger(Section):
    """Metrics and logs."""

    RESUME: ClassVar[Resume] = ALLOWED

    logging_steps: int = setting(
        1, ge=1, description="Log metrics every so many updates.", unit="updates", openrlhf=True, fine_tuning=True
    )
    tensorboard_dir: str | None = setting(
        "tensorboard",
        description="Directory of TensorBoard's event files, relative to run_dir. Unset: none are written.",
        openrlhf=True,
        fine_tuning=True,
    )
    trajectories: float = setting(
        0.0,
        ge=0,
        le=1,
        description=(
            "Share of groups whose trajectories are kept in run_dir/trajectories for"
            " `openrlhf-tir play RUN --step K`. 1: all. A few other groups are kept in run_dir/sampled."
        ),
        unit="share",
    )
    wandb: LoggerWandb = Field(default_factory=LoggerWandb)


@rule("ckpt.max_num", commands=("sft",))
def fine_tuning_keeps_a_checkpoint(c: Config) -> Iterator[Fault]:
    if not c.ckpt.max_num:
        yield "ckpt.max_num = 0, and a fine-tuning always writes checkpoints. Use 1 or more."


@rule("ckpt.max_num")
def resuming_needs_checkpoints(c: Config) -> Iterator[Fault]:
    needing = [name for name in ("resume", "max_restarts") if getattr(c.train, name)]
    if not c.ckpt.max_num and needing:
        yield f"train.{needing[0]} goes on from a checkpoint, and ckpt.max_num = 0 writes none. Change one of them."
