"""Chat tools: which tools the model's chat template is told of: env.tools, or what the environment says of itself."""

from __future__ import annotations

import os
from typing import Any

from ...config import Config
from ...config.environments import Environment
from ...envs.probe import probe_env
from ...episodes import turns
from ...protocol import PYTHON_TOOL
from ...user_code import plugins


def with_tools(cfg: Config) -> Config:
    """The configuration with the tools of each environment filled in, where a messages protocol has none.

    Raises Unavailable when a server that runs does not answer.
    """
    for name, e in cfg.environments.items():
        if e.env.tools or not turns.of_messages(turns.load(e.env.protocol)):
            continue
        if name in cfg.envs:
            cfg = cfg.model_copy(
                update={"envs": {**cfg.envs, name: cfg.envs[name].model_copy(update={"tools": tools_of(cfg, e)})}}
            )
        else:
            cfg = cfg.model_copy(update={"env": cfg.env.model_copy(update={"tools": tools_of(cfg, e)})})
    return cfg


def tools_of(cfg: Config, e: Environment) -> list[dict[str, Any]]:
    """What /schema says, or will say of a server that the run starts itself."""
    if e.urls:
        _, schema = probe_env(e.urls[0], token=os.environ.get(cfg.env.token_env))
        return schema.tools
    if e.env.file:
        return list(getattr(plugins.load(plugins.ENVIRONMENT, e.env.file), "tools", []))
    return [PYTHON_TOOL] if e.serves == "python_tir" else []
