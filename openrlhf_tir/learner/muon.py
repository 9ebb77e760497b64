"""DeepSpeed's Muon optimizer with its missing settings (https://kellerjordan.github.io/posts/muon/).

Muon orthogonalizes the momentum of the matrices between embedding and head; all other parameters use AdamW.

    m <- momentum * m + (1 - momentum) * g
    u = NewtonSchulz(g + momentum * (m - g))        with Nesterov, else NewtonSchulz(m)
    w <- w - lr * scale * u                         lr: muon.lr, in the shape of AdamW's schedule

DeepSpeed reads learning rate and momentum from its configuration. Its update function also has arguments for the
number of Newton-Schulz steps and for Nesterov, which DeepSpeed never passes; `muon_as` does. An orthogonalized update
has a fixed norm, which clipping would only scale down, so there is no clipping with Muon (max_norm applies to AdamW
alone).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from ..config import Actor, Critic
from ..machine.replaced import replaced

USES = "use_muon"
"""Key by which DeepSpeed marks the parameter groups of Muon."""


def set_lr(optimizer: torch.optim.Optimizer, lr: float, optim: Actor | Critic) -> None:
    """Set the learning rate of all parameter groups.

    AdamW's groups get `lr`. Muon's groups get `lr` times muon.lr / learning_rate, so that both follow one schedule.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr * optim.muon.lr / optim.learning_rate if group.get(USES) else lr


@contextmanager
def muon_as(optim: Actor | Critic, device: str) -> Iterator[None]:
    """Let Muon use the configured Newton-Schulz steps and Nesterov inside the block. Does nothing for AdamW.

    On CPU the update is not compiled, because torch would build C++ for every shape of a matrix.
    """
    if optim.optim != "muon":
        yield
        return
    from deepspeed.runtime.zero.muon import original_muon

    stance = "force_eager" if device == "cpu" else "default"
    update = partial(original_muon.muon_update, ns_steps=optim.muon.ns_steps, nesterov=optim.muon.nesterov)
    with replaced(original_muon, "muon_update", update), torch.compiler.set_stance(stance):
        yield
