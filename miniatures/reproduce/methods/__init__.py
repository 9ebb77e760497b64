"""Methods: the miniatures by name. One file each, with a `MINIATURE`."""

from __future__ import annotations

from importlib import import_module

from openrlhf_tir.errors import unknown

from ..miniature import Miniature

NAMES = (
    "zerotir", "zero_tir_rl", "interaction_scaling", "torl", "retool", "artist", "artist_functions", "toolrl",
    "tool_n1", "otc", "search_r1", "skyrl", "curriculum",
)  # fmt: skip


def named(name: str) -> Miniature:
    """Raises ConfigError for a name that is not known."""
    if name not in NAMES:
        raise unknown("miniature", name, NAMES, "See `openrlhf-tir reproduce --list`.")
    miniature: Miniature = import_module(f".{name}", __name__).MINIATURE
    return miniature
