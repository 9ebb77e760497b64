"""Import openrlhf on machines without flash-attn, and without parts of torch and transformers that it does not need.

openrlhf.models.ring_attn_utils imports five helpers of flash-attn at module level. Four are plain indexing; the fifth,
`all_gather`, belongs to ring attention, which is not used here. The stubs must disappear after the import: transformers
would take them for an installed flash-attn and choose its kernels. Where flash-attn is installed, there are no stubs.

Two lines of openrlhf cost every rank 3.6 of 14 CPU seconds: `@torch.compile` at a function that is never called here
loads inductor's kernels (so does DeepSpeed's Muon), and `transformers.trainer`, from which it takes `get_scheduler`,
loads datasets and pandas.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from ..machine.replaced import replaced


def _ring_attention_only(*_args, **_kwargs):
    raise NotImplementedError(
        "flash_attn.utils.distributed.all_gather belongs to ring attention, which needs flash-attn."
        " Leave ring attention off."
    )


def _stubs() -> dict[str, dict[str, object]]:
    """Return the attributes of each stub module by the module's name."""
    from einops import rearrange
    from transformers.modeling_flash_attention_utils import _pad_input, _unpad_input

    padding = {
        "index_first_axis": lambda x, indices: x[indices],
        "pad_input": _pad_input,
        "unpad_input": _unpad_input,
        "rearrange": rearrange,
    }
    return {
        "flash_attn": {},
        "flash_attn.bert_padding": padding,
        "flash_attn.utils": {},
        "flash_attn.utils.distributed": {"all_gather": _ring_attention_only},
    }


@contextmanager
def flash_attn_importable() -> Iterator[None]:
    """Make `from flash_attn.bert_padding import ...` work inside the block.

    Import transformers before it: transformers checks for flash-attn when it is imported.
    """
    if importlib.util.find_spec("flash_attn") is not None:
        yield
        return
    with _stand_ins(_stubs()):
        yield


def _as_written(function: Any = None, **_options: Any) -> Any:
    """Return the function itself, as a decorator with or without options."""
    return _as_written if function is None else function


@contextmanager
def without_heavy_imports() -> Iterator[None]:
    """Make modules load inside the block without inductor's kernels, datasets and pandas.

    Functions that they decorate with `torch.compile` stay as they are written.
    """
    from transformers.optimization import get_scheduler

    trainer = "transformers.trainer"
    stubs = {} if trainer in sys.modules else {trainer: {"get_scheduler": get_scheduler}}
    with replaced(torch, "compile", _as_written), _stand_ins(stubs):
        yield


@contextmanager
def _stand_ins(stubs: dict[str, dict[str, object]]) -> Iterator[None]:
    """Let modules with these names and attributes exist inside the block."""
    for name, attributes in stubs.items():
        module = ModuleType(name)
        # The spec is set because transformers' find_spec raises ValueError on a module whose __spec__ is None.
        module.__spec__ = ModuleSpec(name, loader=None, is_package=True)
        module.__path__ = []
        vars(module).update(attributes)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name in stubs:
            del sys.modules[name]
