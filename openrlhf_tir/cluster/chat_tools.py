"""Chat tools: which tools the model's chat template is told of: env.tools, or what the environment says of itself."""

from __future__ import annotations

import os
from typing import Any

from .. import plugins
from ..config import Config
from ..envs.probe import probe_env
from ..episodes import turns
from ..protocol import PYTHON_TOOL


def with_tools(cfg: Config) -> Config:
    """The configuration with env.tools filled in, where a messages protocol has none. Raises Unavailable when a server that runs does not answer."""
    if cfg.env.tools or not turns.of_messages(turns.load(cfg.env.protocol)):
        return cfg
    return cfg.model_copy(update={"env": cfg.env.model_copy(update={"tools": tools_of(cfg)})})


def tools_of(cfg: Config) -> list[dict[str, Any]]:
    """What /schema says, or will say of a server that the run starts itself."""
    if cfg.env.url:
        _, schema = probe_env(cfg.env.url.split(",")[0].strip(), token=os.environ.get(cfg.env.token_env))
        return schema.tools
    if cfg.env.file:
        return list(getattr(plugins.load(plugins.ENVIRONMENT, cfg.env.file), "tools", []))
    return [PYTHON_TOOL] if cfg.env.name == "python_tir" else []
