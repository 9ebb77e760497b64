"""Choose the attention kernel: flash-attn's where that package is installed, else torch's own, but never cuDNN's."""

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


def leave_out_cudnn() -> None:
    """Keep torch from using cuDNN's attention in this process.

    torch prefers it on recent cards, and it builds an execution plan of some 40 ms for every new shape. Nearly every
    pass over sequences has one: a step of an H100 took 22 s in which the card was idle.
    """
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)
