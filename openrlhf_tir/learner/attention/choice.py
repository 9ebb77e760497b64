"""Choose the attention kernel: flash-attn's where that package is installed, else torch's own flash kernels."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

FLASH_ATTN = "flash_attention_2"
"""The setting that asks for the package flash-attn, which compiles for tens of CPU hours and so is optional."""


def is_installed(module: str) -> bool:
    """Return True if a module can be imported, without importing it."""
    return find_spec(module) is not None


def attention_implementation(setting: str, has_module: Callable[[str], bool] = is_installed) -> str:
    """Return what ds.attn_implementation = `setting` means on this machine.

    Without the package flash-attn "flash_attention_2" is "sdpa": torch brings flash kernels of the same arithmetic,
    which packed rows are given too.
    """
    return "sdpa" if setting == FLASH_ATTN and not has_module("flash_attn") else setting
