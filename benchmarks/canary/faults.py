"""Faults that a benchmark or test builds into a real vLLM worker, each of which a push's proof must find.

A fault changes what the model's loader is given, or what the model computes with; the file that was sent, and so its
digest, is right. `install` runs inside the worker (`collective_rpc` with a function, which vLLM allows only with
VLLM_ALLOW_INSECURE_SERIALIZATION=1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

Tensors = Iterable[tuple[str, Any]]


class Fault(NamedTuple):
    """A fault by name, and the layer that it is in where it is in one."""

    kind: str
    layer: int = -1

    @property
    def name(self) -> str:
        return self.kind if self.layer < 0 else f"{self.kind}@{self.layer}"


LAYER_KINDS = (
    "layer_not_loaded",
    "layer_of_version_before",
    "layers_exchanged",
    "q_shifted",
    "k_shifted",
    "v_shifted",
    "gate_up_exchanged",
)
"""Faults that can be in any layer."""
PACKED_HEAD = "head_keeps_packed_copy"
"""It needs a head that is packed: see `packs_head`."""
MODEL_KINDS = (
    "nothing_loaded",
    "embedding_not_loaded",
    PACKED_HEAD,
    "one_rank_stale",
    "weights_of_another_run",
)
"""Faults of the model as a whole that a read-back can show."""
COMPUTE_KINDS = ("rope_base", "attention_scale", "norm_epsilon")
"""The weights are right and what is computed with them is not: only log-probs can show it."""


def all_faults(layers: int) -> list[Fault]:
    """Return every fault, those of a layer in the first, the middle and the last one."""
    at = sorted({0, layers // 2, layers - 1})
    return [
        *(Fault(kind) for kind in MODEL_KINDS),
        *(Fault(kind, layer) for kind in LAYER_KINDS for layer in at),
        *(Fault(kind) for kind in COMPUTE_KINDS),
    ]


def applicable_faults(faults: Iterable[Fault], packed: Iterable[bool]) -> list[Fault]:
    """Return the faults that can be built into workers, of which `packed` says whether the head of each is packed."""
    without = set() if all(packed) else {PACKED_HEAD}
    return [fault for fault in faults if fault.kind not in without]


def packs_head(worker: Any) -> bool:
    """Return whether a worker computes logits from a packed copy of the head. In bf16 a CPU without AVX-512 packs none.

    Such a copy computes the same whichever weight is passed beside it.
    """
    import torch

    head = worker.weight_transfer_engine.model.lm_head
    x = torch.ones(1, head.weight.shape[1], dtype=head.weight.dtype)
    return torch.equal(head.cpu_linear(x, head.weight, None), head.cpu_linear(x, 2 * head.weight, None))


def install(worker: Any, kind: str, layer: int, layers: int, before: str | None, other: str | None) -> None:
    """Build a fault into a worker. `none` removes it.

    Args:
        worker: vLLM's worker.
        kind: One of the kinds above, or `none`.
        layer: The layer that the fault is in.
        layers: The model's number of layers.
        before: Safetensors file with the weights of the version before.
        other: Safetensors file with the weights of another run.
    """
    engine = worker.weight_transfer_engine
    model = engine.model
    for undo in engine.__dict__.pop("_undo_fault", []):
        undo()
    engine.repack_lm_head = kind != PACKED_HEAD
    if kind in COMPUTE_KINDS:
        engine._undo_fault = [_miscompute(model, kind)]
    elif kind not in ("none", PACKED_HEAD):
        loader = type(model).load_weights
        model.load_weights = lambda tensors: loader(model, changed(tensors, kind, layer, layers, before, other))
        engine._undo_fault = [lambda: model.__dict__.pop("load_weights")]


def changed(
    tensors: Tensors, kind: str, layer: int, layers: int, before: str | None, other: str | None
) -> Iterator[tuple[str, Any]]:
    """Yield what the loader is given instead of `tensors`."""
    from safetensors.torch import load_file

    old = load_file(before) if before else {}
    foreign = load_file(other) if other else {}
    sent = dict(tensors)
    neighbour = layer + 1 if layer + 1 < layers else layer - 1
    for name, tensor in sent.items():
        match = re.search(r"\.layers\.(\d+)\.", name)
        here = match is not None and int(match[1]) == layer
        if kind == "nothing_loaded":
            continue
        if kind == "embedding_not_loaded" and "embed_tokens" in name:
            continue
        if kind == "layer_not_loaded" and here:
            continue
        if kind == "layer_of_version_before" and here:
            yield name, old[name]
        elif kind == "layers_exchanged" and match and int(match[1]) in (layer, neighbour):
            twin = neighbour if int(match[1]) == layer else layer
            yield name, sent[name.replace(match[0], f".layers.{twin}.")]
        elif kind in ("q_shifted", "k_shifted", "v_shifted") and here and f"{kind[0]}_proj.weight" in name:
            yield name, tensor.roll(1, 0)
        elif kind == "gate_up_exchanged" and here and ("gate_proj" in name or "up_proj" in name):
            twin_name = name.replace("gate_proj", "up_proj") if "gate" in name else name.replace("up_proj", "gate_proj")
            yield name, sent[twin_name]
        elif kind == "one_rank_stale" and tensor.dim() == 2:
            yield name, _rank_stale(name, tensor, old[name])
        elif kind == "weights_of_another_run":
            yield name, foreign[name]
        else:
            yield name, tensor


def _rank_stale(name: str, new: Any, old: Any) -> Any:
    """Return `new` with the last third as one rank of three had it before: rows, or columns of a row-parallel layer."""
    mixed = new.clone()
    if "o_proj" in name or "down_proj" in name:
        cut = new.shape[1] * 2 // 3
        mixed[:, cut:] = old[:, cut:]
    else:
        cut = new.shape[0] * 2 // 3
        mixed[cut:] = old[cut:]
    return mixed


def _miscompute(model: Any, kind: str) -> Any:
    """Change what the model computes and return the function that changes it back."""
    kept: list[tuple[Any, str, Any]] = []

    def put(owner: Any, attribute: str, value: Any) -> None:
        kept.append((owner, attribute, getattr(owner, attribute)))
        setattr(owner, attribute, value)

    for module in model.modules():
        name = type(module).__name__
        if kind == "rope_base" and hasattr(module, "cos_sin_cache"):
            if not any(owner is module for owner, _, _ in kept):
                kept.append((module, "base", module.base))
                module.base = module.base / 10
                fresh = module._compute_cos_sin_cache().to(module.cos_sin_cache.dtype)
                kept.append((module.cos_sin_cache, "data", module.cos_sin_cache.data.clone()))
                module.cos_sin_cache.data.copy_(fresh)
        elif kind == "attention_scale" and hasattr(module, "impl") and hasattr(module.impl, "scale"):
            put(module.impl, "scale", module.impl.scale * 1.1)
        elif kind == "norm_epsilon" and name == "RMSNorm":
            put(module, "variance_epsilon", 10_000 * module.variance_epsilon)

    def undo() -> None:
        for owner, attribute, value in reversed(kept):
            if attribute == "data":
                owner.data.copy_(value)
            else:
                setattr(owner, attribute, value)

    return undo
