"""The models beside the policy: its reference and its critic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from ..setting import ALLOWED, Condition, Fault, refused, rule, setting
from .base import Beta, Section
from .conditions import estimator_of
from .learner import Muon

if TYPE_CHECKING:
    from ..schema import Config


class Ref(Section):
    """The reference model: the policy that the run started from, frozen, on the learner's ranks. Loaded while
    algo.kl.init_coef > 0."""

    offload: bool = setting(
        False,
        description="Keep its weights in host memory between its forward passes.",
        active_when=Condition("with ds.zero_stage = 3, which partitions these weights", lambda c: c.ds.zero_stage == 3),
        resume=ALLOWED,
        openrlhf=True,
    )


class Critic(Section):
    """The critic of an estimator that has one, such as gae, on the learner's ranks, with its own optimiser."""

    model_name_or_path: str = setting(
        "",
        description=(
            "HF directory or name of the model to start from, e.g. a reward model. Unset: the policy's model with a new"
            " head."
        ),
        openrlhf=True,
        names="input_files",
    )
    learning_rate: float = setting(
        9e-6,
        gt=0,
        description="Adam step size at the end of warm-up.",
        openrlhf="critic.adam.lr",
    )
    lr_scheduler: Literal["constant", "linear", "cosine", "inverse_sqrt"] = setting(
        "constant",
        description="Shape of the learning rate after warm-up, over train.max_steps.",
    )
    lr_warmup_ratio: float = setting(
        0.0,
        ge=0,
        lt=1,
        description="Share of train.max_steps in which the learning rate rises to its value.",
        openrlhf=True,
    )
    min_lr_ratio: float = setting(
        0.1,
        ge=0,
        le=1,
        description="Final learning rate divided by learning_rate.",
        active_when=Condition(
            "with critic.lr_scheduler = linear or cosine",
            lambda c: c.critic.lr_scheduler in ("linear", "cosine"),
        ),
        openrlhf=True,
    )
    adam_betas: tuple[Beta, Beta] = setting(
        (0.9, 0.95),
        description="Adam beta1 and beta2, each in [0, 1).",
        openrlhf="critic.adam.betas",
    )
    adam_eps: float = setting(
        1e-8,
        gt=0,
        description="Adam epsilon, added to the root of the second moment.",
        openrlhf="critic.adam.eps",
    )
    l2: float = setting(0.0, ge=0, description="Weight decay.", openrlhf="critic.adam.weight_decay")
    max_norm: float = setting(
        1.0,
        gt=0,
        description="Clip the gradient to this norm.",
        active_when=Condition(
            "with critic.optim = adam, since the updates of muon have a fixed norm",
            lambda c: c.critic.optim != "muon",
        ),
        openrlhf=True,
    )
    optim: Literal["adam", "muon"] = setting(
        "adam",
        description="Optimiser.",
        resume=refused("the optimiser's state was saved as that one's"),
        openrlhf=True,
    )
    muon: Muon = setting(
        default_factory=Muon,
        description="Settings of Muon.",
        active_when=Condition("with critic.optim = muon", lambda c: c.critic.optim == "muon"),
    )
    value_clip: float | None = setting(
        0.5,
        gt=0,
        description="Largest change of a value per batch that the loss takes into account. Unset: no clipping.",
        openrlhf=True,
    )
    updates: int | None = setting(
        None,
        ge=1,
        description=(
            "Optimiser steps per pass over a batch, which is cut into as many parts (ZeroTIR: 12). Unset: as many as"
            " the policy makes."
        ),
    )
    freezing_steps: int = setting(
        0,
        ge=-1,
        description="Number of first updates of the run that train the critic alone and leave the policy as it is.",
        unit="updates",
        openrlhf=True,
    )
    save_value_network: bool = setting(
        False,
        description="Export the critic at the end, beside ckpt.output_dir, as a HF sequence classifier of one label.",
        openrlhf=True,
    )


@rule("critic.model_name_or_path", reads_estimator=True)
def critic_is_used(c: Config) -> Iterator[Fault]:
    if c.critic.model_name_or_path and not estimator_of(c).critic:
        yield (
            f"critic.model_name_or_path = {c.critic.model_name_or_path!r}, and algo.advantage.estimator ="
            f" {c.algo.advantage.estimator!r} uses no critic. Set the estimator to 'gae', or leave the critic out."
        )


@rule("critic.freezing_steps")
def frozen_updates_are_whole_batches(c: Config) -> Iterator[Fault]:
    frozen = c.critic.freezing_steps
    per_batch = c.updates_per_batch
    if frozen >= c.train.max_steps:
        yield (
            f"critic.freezing_steps = {frozen} leaves none of train.max_steps = {c.train.max_steps} to"
            " the policy. Lower the first."
        )
    elif frozen > 0 and frozen % per_batch:
        below = frozen // per_batch * per_batch
        yield (
            f"critic.freezing_steps = {frozen} updates end in the middle of a batch, of which each"
            f" makes {per_batch} ({c.updates_per_batch_in_words}), and a batch either trains the policy or does not."
            f" Use {f'{below} or ' if below else ''}{below + per_batch}."
        )
