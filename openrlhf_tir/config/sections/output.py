"""What a run shows and keeps: evaluation, checkpoints, logs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from ..numbers import bytes_of
from .base import Section

OF_AVERAGE = "_ema"
"""Behind the name of an export (ckpt.output_dir): that of the average of its weights (train.enable_ema)."""


class LoggerWandb(Section):
    key: str | None = Field(
        None, description="API key, or the string 'env' to use WANDB_API_KEY; unset, and no mode: no wandb"
    )
    mode: Literal["online", "offline"] | None = Field(
        None,
        description=(
            "offline: needs no key and no network, and writes run_dir/wandb, which `wandb sync` uploads later; online:"
            " with the key that `wandb login` has stored; unset: as logger.wandb.key says"
        ),
    )
    org: str | None = None
    group: str | None = None
    project: str = "openrlhf_tir"
    run_name: str | None = None


class Eval(Section):
    dataset: str | None = None
    split: str = "test"
    steps: int = Field(-1, ge=-1, description="evaluate every so many updates; -1: only before and after")
    n_samples_per_prompt: int = Field(4, ge=1)
    temperature: float = Field(1.0, ge=0, description="sampling temperature; 0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="of evaluation alone, like the temperature")
    max_calls: int | None = Field(
        None, ge=0, description="N of evaluation alone: tool calls per response; unset: the environment's"
    )
    max_samples: int = Field(100_000_000, ge=1, description="problems of eval.dataset, the first ones; all by default")
    max_tries: int = Field(
        2,
        ge=1,
        description="how often an evaluation is tried before it is reported as failed; training goes on in any case",
    )
    timeout_s: float = Field(14_400.0, gt=0, description="an evaluation that takes longer is given up")
    wait: bool = Field(
        False,
        description=(
            "the learner waits for the figures; else it trains on as far as pipeline.max_staleness admits before the"
            " next push, which waits, and copies its state first where they may make a best checkpoint"
            " (ckpt.best_metric_key); always so in mode sync"
        ),
    )


class Ckpt(Section):
    path: str = Field("ckpt", description="directory of resumable checkpoints, relative to run_dir")
    save_steps: int = Field(20, ge=-1, description="every so many updates; -1: none but the last")
    max_num: int = Field(2, ge=1, description="how many are kept, the best by evaluation not counted")
    max_mem: float | None = Field(
        None,
        gt=0,
        description=(
            "GiB that all of them may take: the oldest go first, the last and the best stay in any case;"
            " unset: max_num alone bounds them"
        ),
    )
    save_hf: bool = Field(
        False, description="every save_steps a HF export as well, step_000020_hf in path; none is ever removed"
    )
    disable_ds: bool = Field(
        False,
        description=(
            "write no checkpoints, the best by evaluation included: a run that dies begins anew;"
            " with save_hf its exports are what is left"
        ),
    )
    best_metric_key: str = Field(
        "eval/accuracy",
        description=(
            "the checkpoint with the highest value of this evaluation metric is kept and"
            " exported to <output_dir>_best; 'none': off"
        ),
    )
    output_dir: str = Field("model", description="directory of the final HF export, relative to run_dir")
    max_shard_size: str = Field(
        "5GB",
        description=(
            "bytes of tensors in one file of an export, with a unit (5GB, 512MiB);"
            " a larger model is several files and an index"
        ),
    )

    @field_validator("max_shard_size", mode="after")
    @classmethod
    def _size(cls, v: str) -> str:
        try:
            bytes_of(v)
        except ValueError as e:
            raise ValueError(f"ckpt.max_shard_size = {e}.") from None
        return v

    @property
    def max_shard_bytes(self) -> int:
        return bytes_of(self.max_shard_size)


class Logger(Section):
    logging_steps: int = Field(1, ge=1)
    tensorboard: bool = True
    tensorboard_dir: str = Field(
        "tensorboard", description="directory of TensorBoard's event files, relative to run_dir"
    )
    trajectories: float = Field(
        0.0,
        ge=0,
        le=1,
        description=(
            "share of groups whose trajectories are kept in run_dir/trajectories,"
            " for `openrlhf-tir play RUN --step K`; 1: all"
        ),
    )
    dropped: int = Field(
        8,
        ge=0,
        description=(
            "keep the texts of some groups that were dropped or failed, whatever logger.trajectories is: the first"
            " ones of each reason, and as many again each time that their count has doubled;"
            " `openrlhf-tir play RUN --dropped` shows them; 0: none"
        ),
    )
    worker_logs: bool = Field(
        False,
        description="print what actors and learner ranks log here as well; it is always in Ray's session directory",
    )
    wandb: LoggerWandb = Field(default_factory=LoggerWandb)
