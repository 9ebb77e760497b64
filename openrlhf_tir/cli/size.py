"""The `size` command: what every GPU, host and disk of a run would hold; with --cards, what fits on so many cards."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..config import Config
from ..config.flags import add_config_flags
from ..config.numbers import real
from ..errors import ConfigError
from ..machine.sizes import size
from . import scale_table
from .configuration import config_of
from .exit_codes import DONE, NO

if TYPE_CHECKING:
    from rich.table import Table

GIB = 2**30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    parser.add_argument(
        "--gpu-gib", type=real(), default=80.0, metavar="GIB", help="memory of one GPU in GiB [%(default)s]"
    )
    parser.add_argument(
        "--host-gib",
        type=real(),
        metavar="GIB",
        help="host memory of one node in GiB, to compare with [this machine's with --cpu, else not compared]",
    )
    parser.add_argument("--cpu", action="store_true", help="plan a run without GPUs, where all is in host memory")
    scale_table.add_arguments(parser)
    add_config_flags(parser, first=())


def run(args: argparse.Namespace) -> int:
    """Print the plan and return the exit code, which is 1 if something does not fit."""
    if args.cards:
        scale_table.show(args)
        return DONE
    if args.cpu:
        return _on_cpus(args)
    from rich.console import Console
    from rich.table import Table

    from ..memory.host_plan import host_plan
    from ..memory.memory_plan import memory_plan

    config = config_of(args, makes_data=True)
    plan = memory_plan(config, int(args.gpu_gib * GIB))
    if plan is None:
        raise _unreadable(config)
    table = Table(
        "where",
        "what",
        "size",
        title=f"{plan.parameters / 1e9:.2f} billion parameters, {config.ds.param_dtype}, GPUs of {args.gpu_gib:g} GiB",
    )
    places = {
        f"each of {plan.ranks} learner ranks": (plan.learner, plan.learner_gpu),
        f"each GPU of {config.vllm.num_engines} engines of {config.vllm.world_size}": (
            plan.engine,
            plan.engine_gpu,
        ),
    }
    for where, (parts, total) in places.items():
        _add_parts(table, where, parts, total)
    if plan.shared:
        table.add_row("each GPU, in turns", "engine + what a rank keeps", size(plan.engine_gpu + plan.kept))
        table.add_row("", "rank + what an engine keeps", size(plan.learner_gpu + plan.asleep), end_section=True)
    if plan.learner_host:
        table.add_row(
            "host memory",
            f"of each learner rank ({config.actor.num_gpus_per_node} on a node)",
            size(plan.learner_host),
            end_section=True,
        )
    table.add_row("engine", "tokens in its KV cache", f"{plan.kv_tokens:,}")
    table.add_row("", f"sequences of {plan.longest:,} tokens at once", f"{plan.sequences:.1f}", end_section=True)
    table.add_row("/dev/shm, else the run directory", "two files of weights", size(plan.push))
    table.add_row(
        "run directory", f"checkpoints ({config.ckpt.max_num} and one that is written)", size(plan.checkpoints)
    )
    Console().print(table)
    faults = plan.faults(int(args.gpu_gib * GIB))
    host = host_plan(config, gpus=True, kv_tokens=plan.kv_tokens)
    if host is not None:
        print(f"host: a node needs {host.needs}")
        faults += host.faults(int(args.host_gib * GIB)) if args.host_gib else []
    for fault in faults:
        print(f"does not fit: {fault}")
    return NO if faults else DONE


def _add_parts(table: Table, place: str, parts: Mapping[str, int], total: int) -> None:
    """Add a row for each part of what a place holds, in bytes, and one for the sum."""
    for number, (part, part_bytes) in enumerate(parts.items()):
        table.add_row(place if number == 0 else "", part, size(part_bytes))
    table.add_row("", "sum", size(total), end_section=True)


def _unreadable(cfg: Config) -> ConfigError:
    return ConfigError(
        f"The size of actor.model_name_or_path = {cfg.actor.model_name_or_path!r} cannot be read here. Give a"
        " directory with its config.json, or a name that the hub or its cache knows."
    )


def _on_cpus(args: argparse.Namespace) -> int:
    """Print what each process of a run without GPUs holds, and compare the sum with the memory of a node."""
    from rich.console import Console
    from rich.table import Table

    from ..cluster.process_watch import node_memory
    from ..memory.host_plan import host_plan

    cfg = config_of(args, makes_data=True)
    plan = host_plan(cfg, gpus=False)
    if plan is None:
        raise _unreadable(cfg)
    table = Table("where", "what", "size", title=f"{cfg.ds.param_dtype}, no GPUs")
    for where, parts, total in (
        (f"each of {plan.ranks} learner ranks", plan.learner, plan.rank_bytes),
        (f"each of {plan.engines} engines", plan.engine, plan.engine_bytes),
        *([(f"each of {plan.rewards} reward models", plan.reward, plan.reward_bytes)] if plan.rewards else []),
    ):
        _add_parts(table, where, parts, total)
    if plan.last_push:
        table.add_row("learner rank 0", "the last push", size(plan.last_push), end_section=True)
    table.add_row("/dev/shm, if it has room", "two files of weights", size(plan.pushes))
    table.add_row("other processes", "controller, Ray, environment servers", size(plan.others), end_section=True)
    table.add_row("the node", "all at the peak", size(plan.total))
    Console().print(table)
    faults = plan.faults(int(args.host_gib * GIB) if args.host_gib else node_memory()[1])
    for fault in faults:
        print(f"does not fit: {fault}")
    return NO if faults else DONE
