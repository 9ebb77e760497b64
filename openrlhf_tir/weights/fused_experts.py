"""Find where vLLM holds the weights of a mixture's experts, for the read-back (readback.py).

vLLM keeps the experts of a layer in two tensors, [experts, 2 inner, hidden] and [experts, hidden, inner], of which a
tensor-parallel rank has a part of `inner`. A checkpoint has three matrices for each expert; transformers, and so the
learner, has two tensors for all experts:

    checkpoint   ...mlp.experts.3.gate_proj.weight     rows 0 to inner of w13[3]
                 ...mlp.experts.3.up_proj.weight       the rows after them
                 ...mlp.experts.3.down_proj.weight     w2[3]
    learner      ...mlp.experts.gate_up_proj           w13
                 ...mlp.experts.down_proj              w2

On a CPU both tensors are in the packed order of the kernel, each expert by itself. The order is found by packing the
numbers of the elements; undoing it is exact.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

W13 = "w13_weight"
W2 = "w2_weight"
_ONE_EXPERT = re.compile(r"(.+)\.(\d+)\.(\w+)\.weight")
_ALL_EXPERTS = re.compile(r"(.+)\.(gate_up_proj|down_proj)(\.weight)?")
_DIGIT = 256
"""The numbers of a matrix's elements are packed by digits that every dtype holds exactly."""


class ExpertPart(NamedTuple):
    """What one tensor of a checkpoint is of a layer's experts.

    Attributes:
        module: The layer's experts.
        path: The module's path.
        parameter: W13 or W2.
        expert: Index of the expert; None: all experts.
        half: Of W13: 0 is gate, 1 is up; None: both, or W2.
    """

    module: RoutedExperts
    path: str
    parameter: str
    expert: int | None
    half: int | None

    @property
    def pieces(self) -> set[tuple[int, str, int]]:
        """(expert, parameter, half) of everything that the tensor fills."""
        experts = range(self.module.global_num_experts) if self.expert is None else (self.expert,)
        halves: Sequence[int] = (0,)
        if self.half is not None:
            halves = (self.half,)
        elif self.parameter == W13:
            halves = (0, 1)
        return {(expert, self.parameter, half) for expert in experts for half in halves}


def part_of(modules: Mapping[str, torch.nn.Module], name: str) -> ExpertPart | None:
    """Return what a checkpoint tensor is of some layer's experts; None if it is none of theirs.

    Args:
        modules: The model's modules by path.
        name: The tensor's name, with the model's prefixes.
    """
    if found := _ONE_EXPERT.fullmatch(name):
        module, path = _experts_at(modules, found[1])
        if module is None:
            return None
        places = {
            module.ckpt_gate_proj_name: (W13, 0),
            module.ckpt_up_proj_name: (W13, 1),
            module.ckpt_down_proj_name: (W2, None),
        }
        if found[3] not in places:
            return None
        return ExpertPart(module, path, places[found[3]][0], int(found[2]), places[found[3]][1])
    if found := _ALL_EXPERTS.fullmatch(name):
        module, path = _experts_at(modules, found[1])
        if module is not None and not module.is_fused_checkpoint_transposed:
            return ExpertPart(module, path, W13 if found[2] == "gate_up_proj" else W2, None, None)
    return None


def _experts_at(modules: Mapping[str, torch.nn.Module], path: str) -> tuple[RoutedExperts | None, str]:
    for candidate in (path, f"{path}.routed_experts"):
        module = modules.get(candidate)
        if isinstance(module, RoutedExperts):
            return module, candidate
    return None, path


def is_readable(module: torch.nn.Module) -> bool:
    """Return True if `module` holds plain experts, all of them on this worker (in part, with tensor parallelism)."""
    return (
        isinstance(module, RoutedExperts)
        and isinstance(module.quant_method, UnquantizedFusedMoEMethod)
        and not module.use_ep
        and module.local_num_experts == module.global_num_experts
    )


def expected_pieces(module: RoutedExperts) -> set[tuple[int, str, int]]:
    """Return (expert, parameter, half) of everything that a push has to fill."""
    experts = range(module.global_num_experts)
    return {(e, W13, half) for e in experts for half in (0, 1)} | {(e, W2, 0) for e in experts}


def sizes(module: RoutedExperts) -> tuple[int, int]:
    """Return this rank's part of `inner`, and the size to which its kernel pads it."""
    held: torch.Tensor = getattr(module, W2)
    padded = held.shape[2]
    return min(module.moe_config.intermediate_size // module.moe_config.tp_size, padded), padded


def read(part: ExpertPart) -> torch.Tensor:
    """Return what the model holds of a part, without padding: a matrix, or [experts, rows, columns]."""
    inner, padded = sizes(part.module)
    held = getattr(part.module, part.parameter).detach()
    held = held if part.expert is None else held[part.expert : part.expert + 1]
    held = _unpacked(part.module, held)
    if part.parameter == W2:
        matrices = held[:, :, :inner]
    else:
        halves = [held[:, half * padded : half * padded + inner] for half in _halves(part)]
        matrices = torch.cat(halves, dim=1)
    return matrices if part.expert is None else matrices[0]


def cut(part: ExpertPart, sent: torch.Tensor) -> torch.Tensor:
    """Return the part of a sent tensor that belongs to this rank, in the shape of `read`."""
    inner, _ = sizes(part.module)
    begin = part.module.moe_config.tp_rank * inner
    matrices = sent if part.expert is None else sent[None]
    if part.parameter == W2:
        mine = matrices[:, :, begin : begin + inner]
    else:
        halves = matrices.chunk(len(_halves(part)), dim=1)
        mine = torch.cat([half[:, begin : begin + inner] for half in halves], dim=1)
    return mine if part.expert is None else mine[0]


def _halves(part: ExpertPart) -> tuple[int, ...]:
    return (0, 1) if part.half is None else (part.half,)


def _unpacked(module: RoutedExperts, packed: torch.Tensor) -> torch.Tensor:
    """Return [experts, rows, columns] in plain order."""
    kernel = getattr(module.quant_method.moe_kernel, "fused_experts", None)
    isa = getattr(kernel, "isa", None)
    if isa is None or getattr(kernel, "_use_zentorch", False):
        return packed
    order = _packed_order(isa, packed.shape[1], packed.shape[2], packed.dtype)
    plain = torch.empty_like(packed).flatten(1)
    plain[:, order] = packed.flatten(1)
    return plain.view(packed.shape)


@functools.cache
def _packed_order(isa: str, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Return for each place of a packed matrix the number of the element that is there, [rows * columns] int64."""
    from vllm._custom_ops import cpu_prepack_moe_weight

    number = torch.arange(rows * columns).view(1, rows, columns)
    order = torch.zeros_like(number)
    scale = 1
    while scale < rows * columns:
        digit = (number // scale % _DIGIT).to(dtype)
        order += cpu_prepack_moe_weight(digit, isa).to(torch.int64) * scale
        scale *= _DIGIT
    return order.flatten()
