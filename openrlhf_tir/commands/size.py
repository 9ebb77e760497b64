"""size: recipe + flags + the memory of a GPU -> what every GPU, host and disk would hold, and whether it fits."""

from __future__ import annotations

import argparse

from ..config.flags import add_config_flags
from ..config.numbers import real
from ..errors import ConfigError
from ..exit_codes import NO
from . import config_of

GIB = 2**30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpu-gib", type=real(), default=80.0, metavar="GIB", help="memory of one GPU in GiB [%(default)s]"
    )
    add_config_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when something does not fit."""
    from rich.console import Console
    from rich.table import Table

    from ..memory_plan import memory_plan
    from ..sizes import size

    cfg = config_of(args, makes_data=True)
    plan = memory_plan(cfg, int(args.gpu_gib * GIB))
    if plan is None:
        raise ConfigError(
            f"The size of actor.model_name_or_path = {cfg.actor.model_name_or_path!r} cannot be read here. Give a"
            " directory with its config.json, or a name that the hub or its cache knows."
        )
    table = Table(
        "where",
        "what",
        "size",
        title=f"{plan.parameters / 1e9:.2f} billion parameters, {cfg.ds.param_dtype}, GPUs of {args.gpu_gib:g} GiB",
    )
    places = {
        f"each of {plan.ranks} learner ranks": (plan.learner, plan.learner_gpu),
        f"each GPU of {cfg.vllm.num_engines} engines of {cfg.vllm.tensor_parallel_size}": (
            plan.engine,
            plan.engine_gpu,
        ),
    }
    for where, (parts, total) in places.items():
        for i, (what, n) in enumerate(parts.items()):
            table.add_row(where if i == 0 else "", what, size(n))
        table.add_row("", "sum", size(total), end_section=True)
    if plan.shared:
        table.add_row("each GPU, in turns", "engine + what a rank keeps", size(plan.engine_gpu + plan.kept))
        table.add_row("", "rank + what an engine keeps", size(plan.learner_gpu + plan.asleep), end_section=True)
    if plan.learner_host:
        table.add_row(
            "host memory",
            f"of each learner rank ({cfg.actor.num_gpus_per_node} on a node)",
            size(plan.learner_host),
            end_section=True,
        )
    table.add_row("engine", "tokens in its KV cache", f"{plan.kv_tokens:,}")
    table.add_row("", f"sequences of {plan.longest:,} tokens at once", f"{plan.sequences:.1f}", end_section=True)
    table.add_row("/dev/shm, else the run directory", "two files of weights", size(plan.push))
    table.add_row("run directory", f"checkpoints ({cfg.ckpt.max_num} and one that is written)", size(plan.checkpoints))
    Console().print(table)
    faults = plan.faults(int(args.gpu_gib * GIB))
    for fault in faults:
        print(f"does not fit: {fault}")
    return NO if faults else 0
