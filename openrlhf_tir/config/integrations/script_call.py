"""A command that starts one of another project's programs, and how many GPUs its launcher was told of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


def gpus_of_launcher(words: Sequence[str]) -> int | None:
    """Return the number of processes per node that a launcher was told; None if it was told none."""
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        name = name.replace("-", "_")
        text = value if equals else "".join(words[i + 1 : i + 2])
        if name in _PROCESSES:
            return int(text) if text.isdecimal() and int(text) else None
        if name in _INCLUDED:
            return _slots_of_a_node(text)
    return None


def _slots_of_a_node(text: str) -> int | None:
    """Return how many GPUs of each node deepspeed's --include names; None where nodes have different numbers, or all
    GPUs of a node are meant."""
    slots = [node.partition(":")[2] for node in text.split("@")]
    counts = {len(names.split(",")) if names else 0 for names in slots}
    return (counts.pop() or None) if len(counts) == 1 else None
