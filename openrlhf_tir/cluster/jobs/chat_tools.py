"""The tools that the model's chat template is given: env.tools, or what the environment declares."""

from __future__ import annotations

import os
from typing import Any

from ...config import Config
from ...config.environments import Environment
from ...config.secrets import ENV_TOKEN
from ...rollout import protocols
from ...rollout.environment_client.probe import probe_env
from ...user_code import plugins


def with_tools(cfg: Config) -> Config:
    """Return the configuration with the tools of each environment filled in, if a messages protocol has none.

    Raises:
        Unavailable: A running server does not answer.
    """
    for name, environment in cfg.environments.items():
        if environment.env.tools or not protocols.of_messages(protocols.load(environment.env.protocol)):
            continue
        if name in cfg.envs:
            cfg = cfg.model_copy(
                update={
                    "envs": {**cfg.envs, name: cfg.envs[name].model_copy(update={"tools": tools_of(cfg, environment)})}
                }
            )
        else:
            cfg = cfg.model_copy(update={"env": cfg.env.model_copy(update={"tools": tools_of(cfg, environment)})})
    return cfg


def tools_of(cfg: Config, environment: Environment) -> list[dict[str, Any]]:
    """Return the tools that /schema declares, or will declare for a server that the run starts itself."""
    if environment.urls:
        _, schema = probe_env(environment.urls[0], token=os.environ.get(ENV_TOKEN))
        return schema.tools
    if environment.env.file:
        return list(getattr(plugins.load(plugins.ENVIRONMENT, environment.env.file), "tools", []))
    return [*environment.server_info.tools]
