"""A run's secrets: the environment variables that hold its bearer tokens, and the keys that belong into no file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .schema import Config

ENV_TOKEN = "TIR_ENV_TOKEN"
"""The token of the environment servers."""
ROLLOUT_TOKEN = "TIR_ROLLOUT_TOKEN"
"""The token of the rollout actors' endpoints: another one, since hosts that run the model's code have the first."""


WITHOUT_SECRET = ("env", "login", "offline")
"""Values of logger.wandb.key that are no key."""


def without_keys(cfg: Config) -> Config:
    """Return the configuration without the key of a logging service."""
    if cfg.logger.wandb.key in WITHOUT_SECRET:
        return cfg
    wandb = cfg.logger.wandb.model_copy(update={"key": None})
    return cfg.model_copy(update={"logger": cfg.logger.model_copy(update={"wandb": wandb})})
