"""The `serve` command: serve a model by the rollout actors' endpoints until it is stopped.

It is for clients of OpenAI's API without training: to try an agent, or for the driver of another benchmark.
"""

from __future__ import annotations

import argparse

from ..config.flags import add_config_flags
from ..errors import ConfigError
from .configuration import add_model, config_of

FIRST = (
    "vllm.num_engines",
    "vllm.tensor_parallel_size",
    "vllm.max_num_seqs",
    "vllm.tool_call_parser",
    "data.max_len",
    "rollout.port",
    "env.name",
    "run_dir",
)
"""The settings that its help lists."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    add_model(parser)
    add_config_flags(parser, first=FIRST)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from .preflight import check

    cfg = config_of(args)
    if cfg.rollout.engine == "torch":
        raise ConfigError("--rollout.engine torch has no OpenAI API, which vLLM brings. Leave the flag out.")
    check(cfg, training=False, data=False)
    from ..cluster.jobs.main import serve
    from ..cluster.run_lock import run_lock

    with run_lock(cfg.run_dir, cfg.train.start_wait_s):
        serve(cfg)
    return 0
