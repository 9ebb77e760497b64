"""Utilisation of a GPU by a learner's step: memory, and model FLOPs utilisation (MFU). Nothing on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

from ..types import GroupMeta

PEAK_TFLOPS = {
    "GB200": 2500.0,
    "B200": 2250.0,
    "H200": 989.0,
    "GH200": 989.0,
    "H100": 989.0,
    "H800": 989.0,
    "H20": 148.0,
    "A100": 312.0,
    "A800": 312.0,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
    "A10": 125.0,
    "4090": 165.0,
}
"""Part of a device's name -> dense bf16 TFLOP/s by NVIDIA's data sheet. The longest part that fits counts."""
FLOPS_PER_PARAMETER = 6.0
"""Operations for one token: 2 forward, 4 backward. Attention and recomputed activations are left out, as is usual."""


def peak_flops(device: str) -> float | None:
    """Dense bf16 FLOP/s of a device by its name; None for one that is not known."""
    fitting = [part for part in PEAK_TFLOPS if part in device.replace("-", " ").split() or f" {part}" in f" {device}"]
    return PEAK_TFLOPS[max(fitting, key=len)] * 1e12 if fitting else None


def tokens_of(metas: Sequence[GroupMeta], *, share_prompts: bool = False) -> int:
    """Return the tokens of a batch that go through the model: prompts and responses of all valid trajectories.

    Args:
        share_prompts: A group's prompt goes through it once. One that several micro batches or ranks compute is counted
            once as well, so that the MFU is not too high.
    """
    total = 0
    for meta in metas:
        prompts = min(1, len(meta.response_tokens)) if share_prompts else len(meta.response_tokens)
        total += prompts * meta.prompt_tokens + sum(meta.response_tokens)
    return total


def mfu(parameters: int, tokens: int, seconds: float, devices: int, peak: float) -> float:
    """Share of the devices' peak that a step of `seconds` used for `tokens` forward and backward."""
    return FLOPS_PER_PARAMETER * parameters * tokens / (seconds * devices * peak)


def gpu_metrics(parameters: int | None, tokens: int, seconds: float, devices: int) -> dict[str, float]:
    """`gpu_memory_gib` and `gpu_reserved_gib`, the peak since the last call on this rank, and `mfu` where the device's
    peak is known. Without a GPU nothing."""
    import torch

    if not torch.cuda.is_available():
        return {}
    figures = {
        "gpu_memory_gib": torch.cuda.max_memory_allocated() / 2**30,
        "gpu_reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
    }
    torch.cuda.reset_peak_memory_stats()
    peak = peak_flops(torch.cuda.get_device_name())
    if peak is not None and parameters and tokens and seconds > 0:
        figures |= {"mfu": mfu(parameters, tokens, seconds, devices, peak)}
    return figures
