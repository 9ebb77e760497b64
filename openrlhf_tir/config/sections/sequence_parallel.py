"""Rules of ds.ring_attn_size: what it needs, and what it has not been shown to give the same gradient with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .conditions import estimator_of

if TYPE_CHECKING:
    from ..schema import Config
    from ..setting import Fault


def shared_sequences_are_supported(c: Config) -> Iterator[Fault]:
    """Yield what does not work with ranks that share their sequences."""
    size = c.ds.ring_attn_size
    ranks = c.actor.world_size
    if size == 1:
        return
    shared = f"ds.ring_attn_size = {size}"
    if ranks % size:
        yield (
            f"{shared} does not divide the {ranks} learner ranks."
            " Use a divisor of actor.num_nodes * actor.num_gpus_per_node, or 1."
        )
    if not c.ds.packing_samples:
        yield f"{shared} cuts packed rows, and ds.packing_samples is off. Switch that on."
    if c.ds.attn_implementation != "sdpa":
        yield (
            f"{shared} is tested with ds.attn_implementation = 'sdpa', not with {c.ds.attn_implementation!r}."
            " Use sdpa, or ring_attn_size 1."
        )
    untested = {
        f"LoRA (ds.lora.rank = {c.ds.lora.rank}), which": c.ds.lora.rank > 0,
        "ds.use_liger_kernel, which": c.ds.use_liger_kernel,
        "actor.optim = 'muon', which": c.actor.optim == "muon",
        "actor.aux_loss_coef, which": c.actor.aux_loss_coef > 0,
    }
    for feature, is_used in untested.items():
        if is_used:
            yield f"{shared} with {feature} has not been tested on shared sequences. Leave one of them out."


def critic_sees_whole_sequences(c: Config) -> Iterator[Fault]:
    """Yield that a critic has not been tested with ranks that share their sequences."""
    if c.ds.ring_attn_size > 1 and estimator_of(c).critic:
        yield (
            f"ds.ring_attn_size = {c.ds.ring_attn_size} with algo.advantage.estimator ="
            f" {c.algo.advantage.estimator!r}, whose critic has not been tested on shared sequences. Leave one of them"
            " out."
        )


def heads_fault(size: int, heads: int, kv_heads: int) -> str | None:
    """Return why `size` ranks cannot share a model's attention heads; None if they can."""
    undivided = " and ".join(
        f"{n} {name}" for n, name in ((heads, "attention heads"), (kv_heads, "key-value heads")) if n % size
    )
    if not undivided:
        return None
    return (
        f"ds.ring_attn_size = {size} does not divide the model's {undivided}: every rank attends with its share of"
        " them. Use a divisor of both, or 1."
    )
