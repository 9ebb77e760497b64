"""The models beside the policy: its reference and its critic."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Beta, Section
from .learner import Muon


class Ref(Section):
    """The reference model: the policy that the run started from, frozen, on the learner's ranks. Loaded while
    algo.kl.init_coef > 0."""

    offload: bool = Field(
        False, description="keep its weights in host memory between its forward passes (ds.zero_stage = 3)"
    )


class Critic(Section):
    """The critic of algo.advantage.estimator = gae, on the learner's ranks, with an optimiser of its own."""

    model_name_or_path: str = Field(
        "",
        description=(
            "HF directory or name to start from, e.g. a reward model's; unset: actor.model_name_or_path and a new head"
        ),
    )
    learning_rate: float = Field(9e-6, gt=0, description="Adam step size at the end of warm-up")
    lr_scheduler: Literal["constant", "linear", "cosine", "inverse_sqrt"] = Field(
        "constant", description="shape after warm-up, over train.max_steps"
    )
    lr_warmup_ratio: float = Field(0.0, ge=0, lt=1)
    min_lr_ratio: float = Field(
        0.1, ge=0, le=1, description="final learning rate / learning_rate for linear and cosine"
    )
    adam_betas: tuple[Beta, Beta] = (0.9, 0.95)
    adam_eps: float = Field(1e-8, gt=0, description="added to the root of Adam's second moment")
    l2: float = Field(0.0, ge=0, description="weight decay")
    max_norm: float = Field(1.0, gt=0, description="gradient clipping")
    optim: Literal["adam", "muon"] = "adam"
    muon: Muon = Field(default_factory=Muon)
    value_clip: float | None = Field(
        0.5, gt=0, description="a value moves by at most so much per batch in the loss; unset: no clip"
    )
    updates: int | None = Field(
        None,
        ge=1,
        description=(
            "optimiser steps per pass over a batch, which is cut into so many parts (ZeroTIR:"
            " 12); unset: the policy's number"
        ),
    )
    epochs: int | None = Field(None, ge=1, description="passes of the critic over each batch; unset: train.max_epochs")
    freezing_steps: int = Field(
        0,
        ge=-1,
        description="the first so many updates of the run, as train.max_steps counts them, train the critic alone",
    )
    save_value_network: bool = Field(
        False,
        description="export it at the end as well, beside ckpt.output_dir, as a HF sequence classifier of one label",
    )
