"""TRL's optimiser and learning rate, of reinforcement learning and of fine-tuning alike -> settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from .recipe_draft import Copied, Draft, copy
from .shared_settings import say_warm_up

DEFAULTS: dict[str, Any] = {
    "lr_scheduler_type": "linear",
    "warmup_ratio": 0.0,
    "warmup_steps": 0,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "gradient_checkpointing": True,
    "seed": 42,
}
"""What TrainingArguments, as TRL changes them, say of the arguments that are read here. The learning rate is not
among them: each trainer's config has its own."""
COPIED = (
    Copied("weight_decay", "actor.l2", float),
    Copied("adam_epsilon", "actor.adam_eps", float),
    Copied("max_grad_norm", "actor.max_norm", float),
    Copied("gradient_checkpointing", "actor.gradient_checkpointing_enable", bool),
    Copied("seed", "train.seed", int),
)
"""Arguments that are one setting each."""
SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "inverse_sqrt": "inverse_sqrt",
}


def set_optimizer(
    draft: Draft, trl: Callable[[str], Any], section: Literal["actor", "sft"], updates: int | None
) -> None:
    """Set the optimiser, the schedule of its learning rate, and the seed.

    Args:
        draft: The recipe.
        trl: Returns an argument of the trainer's config.
        section: The section with the learning rate. The optimiser itself is the actor's in both.
        updates: The number of updates; None where it is not known.
    """
    draft.set(f"{section}.learning_rate", float(trl("learning_rate")))
    given = str(trl("lr_scheduler_type"))
    schedule = SCHEDULES.get(given, "cosine" if "cosine" in given else "constant")
    if given not in SCHEDULES:
        draft.differs(f"lr_scheduler_type={given}: {schedule} here.")
    draft.set(f"{section}.lr_scheduler", schedule)
    if schedule in ("linear", "cosine"):
        draft.set(f"{section}.min_lr_ratio", 0.0, "linear and cosine end at 0")
    _set_warm_up(draft, trl, section, updates)
    draft.set("actor.adam_betas", [float(trl("adam_beta1")), float(trl("adam_beta2"))])
    copy(COPIED, trl, draft)


def _set_warm_up(draft: Draft, trl: Callable[[str], Any], section: str, updates: int | None) -> None:
    """Set the share of the updates in which the learning rate rises."""
    ratio = float(trl("warmup_ratio") or 0)
    steps = float(trl("warmup_steps") or 0)
    setting = f"{section}.lr_warmup_ratio"
    if str(trl("lr_scheduler_type")) == "constant":  # without a warm-up, whatever is asked for
        ratio = 0.0
    elif 0 < steps < 1:  # transformers 5 takes a share under this name
        ratio = steps
    elif steps and updates:
        ratio = steps / updates
    elif steps:
        say_warm_up(draft, "warmup_steps", f"{steps:g}", setting)
    draft.set(setting, min(0.99, ratio))
