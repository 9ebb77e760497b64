"""Muon (https://kellerjordan.github.io/posts/muon/): momentum, orthogonalised. DeepSpeed's, on the matrices between
embedding and head; the rest has AdamW.

    m <- momentum * m + (1 - momentum) * g
    u = NewtonSchulz(g + momentum * (m - g))        with Nesterov, else NewtonSchulz(m)
    w <- w - lr * scale * u                         lr: muon.lr under the shape of AdamW's schedule

DeepSpeed reads learning rate and momentum from its configuration, and takes steps and Nesterov as arguments that it
never gives: `muon_as` gives them. An orthogonalised update has a norm of its own, which a clip behind it would only
scale down: there is none (max_norm counts for AdamW alone)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ...config import Actor, Critic

USES = "use_muon"
"""DeepSpeed's mark of a group of parameters that Muon has."""


def deepspeed_config(config: dict[str, Any]) -> dict[str, Any]:
    """A training configuration of DeepSpeed whose optimiser is Muon: it needs whole gradients on every rank."""
    config["zero_optimization"]["reduce_scatter"] = False
    return config


def set_lr(optimizer: torch.optim.Optimizer, lr: float, optim: Actor | Critic) -> None:
    """AdamW's groups step by `lr`, Muon's by as much more as muon.lr is above learning_rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr * optim.muon.lr / optim.learning_rate if group.get(USES) else lr


@contextmanager
def muon_as(optim: Actor | Critic, device: str) -> Iterator[None]:
    """Within the block an update takes muon.ns_steps steps of Newton-Schulz, with or without Nesterov. Nothing for
    AdamW.

    On CPU it is not compiled: torch would build C++ for every shape of a matrix.
    """
    if optim.optim != "muon":
        yield
        return
    from deepspeed.runtime.zero.muon import original_muon

    of_deepspeed, stance = original_muon.muon_update, "force_eager" if device == "cpu" else "default"
    original_muon.muon_update = partial(of_deepspeed, ns_steps=optim.muon.ns_steps, nesterov=optim.muon.nesterov)
    try:
        with torch.compiler.set_stance(stance):
            yield
    finally:
        original_muon.muon_update = of_deepspeed
