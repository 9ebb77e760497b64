"""Find modules of a model that a push should have sent a tensor and did not: a layer that was left out.

    names of the tensors sent  ->  what they cover          _Sent
                                   modules without a tensor that are not excused    modules_without_tensor

Only linear layers, embeddings and norms count, and only where the learner has tensors for such modules: for another of
their kind (the same path in another layer) or for one beside them. A visual tower that the learner does not have is no
fault. A tensor that was sent and could not be placed may belong to any module that it lies beside, so none of these
counts as left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import torch
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

from . import fused_experts
from .model_places import ModelPlaces


@dataclass(slots=True)
class _Sent:
    """What the tensors of a push cover in a model.

    Attributes:
        complete: Ids of modules that were sent all of their tensors.
        paths: Paths of modules that were sent at least one.
        around_unplaced: Paths of the modules around a tensor that could not be placed.
    """

    complete: set[int] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)
    around_unplaced: set[str] = field(default_factory=set)


def modules_without_tensor(
    model: ModelPlaces, sent: Iterable[str], unread: Collection[str], never_sent: Collection[str]
) -> tuple[str, ...]:
    """Return the paths of modules that should have been sent a tensor and were not.

    Args:
        model: The model.
        sent: Names of the tensors that were sent, as in the checkpoint.
        unread: Those of them that could not be read back.
        never_sent: Paths of modules for which the checkpoint on disk has no tensor either.
    """
    found = _sent_to(model, sent, unread)
    kinds = {_kind(path) for path in found.paths}
    beside = {ancestor for path in found.paths for ancestor in _ancestors(path)}
    missing = []
    for path, module in model.model.named_modules():
        has_parameters = any(True for _ in module.parameters(recurse=False))
        if not has_parameters or id(module) in found.complete or not _is_known(module):
            continue
        parent = path.rpartition(".")[0]
        if path in never_sent or path in found.around_unplaced or parent in found.around_unplaced:
            continue
        if isinstance(module, ParallelLMHead) and model.shares_embedding(module):
            continue
        if _kind(path) in kinds or parent in beside:
            missing.append(path)
    return tuple(missing)


def _sent_to(model: ModelPlaces, sent: Iterable[str], unread: Collection[str]) -> _Sent:
    """Return what the tensors `sent` cover."""
    found = _Sent()
    positions: dict[str, set[int]] = {}
    """Path of a fused module -> positions in it that were sent."""
    pieces: dict[str, set[tuple[int, str, int]]] = {}
    """Path of a layer's experts -> (expert, parameter, half) that were sent."""
    for name in sent:
        experts = model.experts(name)
        if experts is not None:
            pieces.setdefault(experts.path, set()).update(experts.pieces)
            continue
        path = model.module_name(name).rpartition(".")[0]
        fused_path, position = model.fused_module(path)
        if path in model.modules:
            found.complete.add(id(model.modules[path]))
            found.paths.add(path)
        elif position is not None:
            positions.setdefault(fused_path, set()).add(position)
            if fused_path not in model.modules:
                found.around_unplaced |= _ancestors(path)
        elif name in unread:
            found.around_unplaced |= _ancestors(path)
    for path, sent_positions in positions.items():
        fused = path.rpartition(".")[2]
        expected = {position for module, position in model.fused.values() if module == fused}
        if path in model.modules and sent_positions >= expected:
            found.complete.add(id(model.modules[path]))
        found.paths.add(path)
    for path, sent_pieces in pieces.items():
        module = model.modules[path]
        if sent_pieces >= fused_experts.expected_pieces(module):
            found.complete.add(id(module))
        found.paths.add(path)
    return found


def _ancestors(path: str) -> set[str]:
    """Return `path` and the path of every module around it; the whole model is the empty path."""
    names = path.split(".")
    return {".".join(names[:length]) for length in range(len(names) + 1)}


def _kind(path: str) -> str:
    """Return a path that is the same for one module of every layer: numbers become "*"."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


def _is_known(module: torch.nn.Module) -> bool:
    """Return True for a module that a checkpoint fills and that can be read back: linear, embedding, norm, experts."""
    if isinstance(module, LinearBase):
        return isinstance(module.quant_method, UnquantizedLinearMethod)
    if isinstance(module, VocabParallelEmbedding | torch.nn.Linear | torch.nn.Embedding):
        return True
    if fused_experts.is_readable(module):
        return True
    return type(module).__name__.endswith("Norm")
