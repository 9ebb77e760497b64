"""Repeat what a model's loader has copied, without the loader.

A loader that writes into the tensors that compute makes the same copies in every push, between the same addresses: the
learner's buffers and the model stay where they are. It takes the host some hundred microseconds a tensor to find them
out. So they are recorded once and repeated in one call.

    first push   the loader copies    recorded, and accepted as a plan if all of what was sent was copied once
    later ones   `CopyPlan.copy`

Nothing is taken for granted: the read-back compares the model with what was sent after every push.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Tensors = Sequence[tuple[str, torch.Tensor]]
Copy = tuple[torch.Tensor, torch.Tensor]
"""(target, source)."""


class CopyRecorder(TorchDispatchMode):
    """Notes all copies between tensors inside its block."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[Copy] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.copies.append((args[0], args[1]))
        return func(*args, **(kwargs or {}))


class CopyPlan:
    """The copies of one load."""

    def __init__(self, sent: Tensors, copies: Sequence[Copy]) -> None:
        """Use `of` instead, which checks the copies."""
        self._sent = _addresses(sent)
        self._targets = [target for target, _ in copies]
        self._sources = [source for _, source in copies]

    @classmethod
    def of(cls, sent: Tensors, copies: Sequence[Copy]) -> CopyPlan | None:
        """Return the plan of a load; None if copies alone do not explain it.

        Args:
            sent: Names and tensors that were loaded. Their memory must be mapped at the same addresses later.
            copies: What the loader copied.
        """
        memory = {tensor.untyped_storage().data_ptr() for _, tensor in sent}
        for target, source in copies:
            is_plain = target.dtype == source.dtype and target.device == source.device and target.shape == source.shape
            if not is_plain or source.untyped_storage().data_ptr() not in memory:
                return None
        if sum(source.numel() for _, source in copies) != sum(tensor.numel() for _, tensor in sent):
            return None
        return cls(sent, copies)

    def fits(self, sent: Tensors) -> bool:
        """Return True if these tensors have the names, shapes and addresses of those that the plan was made for."""
        return self._sent == _addresses(sent)

    def copy(self) -> None:
        """Copy everything. Does not wait for the device."""
        torch._foreach_copy_(self._targets, self._sources)


def _addresses(tensors: Tensors) -> list[tuple[str, int, torch.dtype, torch.Size]]:
    return [(name, tensor.data_ptr(), tensor.dtype, tensor.shape) for name, tensor in tensors]
