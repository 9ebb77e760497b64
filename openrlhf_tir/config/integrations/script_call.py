"""A command that starts one of another project's programs, and how many GPUs its launcher was told of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from .shared_settings import existing_path, table_of_yaml, written_text, yaml_table

_OF_ACCELERATE = ("accelerate", "accelerate.commands.launch", "trl")
"""Launchers that count the processes of all nodes."""
_LAUNCHERS = (*_OF_ACCELERATE, "torchrun", "deepspeed", "torch.distributed.run", "torch.distributed.launch")
_NODES = ("__num_machines", "__nnodes", "__num_nodes")
"""Flags of launchers for the number of nodes."""
_CONFIGS = ("__config_file", "__accelerate_config")
"""Flags of accelerate and of TRL's commands for a file with the numbers of both."""
_CONFIGS_OF_TRL = {"single_gpu": 1} | dict.fromkeys(("multi_gpu", "zero1", "zero2", "zero3", "fsdp1", "fsdp2"), 8)
"""Configurations of accelerate that TRL brings along -> their processes, all on one node."""
_PROCESSES = ("__nproc_per_node", "__num_gpus", "__num_processes")
"""Flags of launchers for the processes of a node; some are written with dashes."""
_INCLUDED = ("__include", "_i")
"""deepspeed's flags for nodes and GPUs: localhost:0,1 or worker-0@worker-1:0,2."""


@dataclass(frozen=True)
class Call:
    """A command that starts one of another project's programs."""

    program: str
    launcher: tuple[str, ...]
    """The words up to the program, itself included."""
    words: tuple[str, ...]
    """What stands behind the program."""
    line: int
    """Where it stands; 0 for a command that comes from no script."""
    sentence: str = ""
    """Why it becomes no recipe; empty where it becomes one."""


class Devices(NamedTuple):
    """The GPUs that a launcher was told of.

    Attributes:
        nodes: Their nodes.
        per_node: The GPUs of each.
    """

    nodes: int = 1
    per_node: int = 1


def is_launched(words: Sequence[str]) -> bool:
    """Return True if a launcher that starts several processes is among the words."""
    return any(Path(word).name in _LAUNCHERS for word in words)


def devices_of_launcher(
    words: Sequence[str], directories: Iterable[Path] = (), files: Mapping[str, str] = MappingProxyType({})
) -> Devices | None:
    """Return the GPUs that a launcher was told of, by flags or by accelerate's file; None where only its machine knows
    them.

    Args:
        words: The launcher with its flags.
        directories: Where the path of accelerate's file may begin, the likeliest first.
        files: The files that the script writes itself.
    """
    table: dict[str, Any] = {}
    if config := _value_of(_CONFIGS, words):
        path = existing_path(config, directories)
        text = written_text(config, files)
        table = {"num_processes": _CONFIGS_OF_TRL.get(config)}
        if text is not None:
            table = table_of_yaml(text, config)
        elif path is not None:
            table = yaml_table(path)
    nodes = _whole(_value_of(_NODES, words) or table.get("num_machines") or nodes_included(words))
    per_node = gpus_of_launcher(words)
    is_accelerate = any(Path(word).name in _OF_ACCELERATE for word in words)
    if per_node is None and _value_of(_PROCESSES, words) is None:
        per_node = _whole(table.get("num_processes"))
    if nodes is None or per_node is None:
        return None
    return Devices(nodes, per_node // nodes or 1 if is_accelerate else per_node)


def gpus_of_launcher(words: Sequence[str]) -> int | None:
    """Return the number of processes that a launcher was told; None if it was told none, or no number."""
    if (text := _value_of(_PROCESSES, words)) is not None:
        return _whole(text)
    included = _value_of(_INCLUDED, words)
    return None if included is None else _slots_of_a_node(included)


def nodes_included(words: Sequence[str]) -> int:
    """Return the number of nodes that deepspeed's --include names; 1 without it."""
    return len((_value_of(_INCLUDED, words) or "").split("@"))


def _value_of(names: Sequence[str], words: Sequence[str]) -> str | None:
    """Return the value of the first flag with one of some names, dashes written as underscores; None without one."""
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("-", "_") in names:
            return value if equals else "".join(words[i + 1 : i + 2])
    return None


def _whole(value: Any) -> int | None:
    """Return a number from 1 on, given as such or as text; None for anything else."""
    text = str(value)
    return int(text) if text.isdecimal() and int(text) else None


def _slots_of_a_node(text: str) -> int | None:
    """Return how many GPUs of each node deepspeed's --include names; None where nodes have different numbers, or all
    GPUs of a node are meant."""
    slots = [node.partition(":")[2] for node in text.split("@")]
    counts = {len(names.split(",")) if names else 0 for names in slots}
    return (counts.pop() or None) if len(counts) == 1 else None
