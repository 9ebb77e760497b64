"""Compute log-probs, entropies and gradients from one chunk of logits (see linear_head.py for the formulas).

There are two ways. On a CPU, and where tokens are excluded, a dozen operations work in place on float32 arrays of a
chunk's size. On a CUDA device, where such passes over memory took as long as the matrix products, torch.compile makes
one pass of `scores_of` and one of `gradient_of`; a chunk's logits exist in the precision of the weights only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from .truncation import Truncation


def scores_in_place(
    logits: torch.Tensor, targets: torch.Tensor, truncation: Truncation | None, scratch: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log-probs, entropies and logsumexps of a chunk, [chunk] each, and overwrite `logits` and `scratch`.

    Args:
        logits: [chunk, V] in at least float32.
        targets: [chunk] int64.
        truncation: Tokens that are excluded.
        scratch: [at least chunk, V].
    """
    excluded = truncation.cut(logits, targets) if truncation else None
    if excluded is not None:
        logits.masked_fill_(excluded, -torch.inf)
    # This is as exact as torch.logsumexp and takes half its time on a CPU. torch's softmax is not used because its sum
    # over 152k entries has errors of 1e-5.
    top = logits.amax(-1)
    exps = torch.sub(logits, top[:, None], out=scratch[: len(logits)]).exp_()
    total = exps.sum(-1)
    lse = top + total.log()
    log_probs = logits.gather(-1, targets[:, None]).squeeze(-1) - lse
    # An excluded token has p = 0 and l = -inf; their product in the entropy would be NaN.
    logits = logits if excluded is None else logits.masked_fill_(excluded, 0.0)
    return log_probs, lse - exps.mul_(logits).sum(-1) / total, lse


def gradient_in_place(
    logits: torch.Tensor,
    targets: torch.Tensor,
    truncation: Truncation | None,
    scratch: torch.Tensor,
    lse: torch.Tensor,
    d_log_probs: torch.Tensor,
    entropy: torch.Tensor,
    d_entropy: torch.Tensor | None,
) -> torch.Tensor:
    """Return the gradient of `logits`, [chunk, V], and overwrite `logits` and `scratch`.

    Args:
        logits: [chunk, V] in at least float32.
        targets: [chunk] int64.
        truncation: Tokens that are excluded.
        scratch: [at least chunk, V]. It may be the memory of `logits` if `d_entropy` is None.
        lse: [chunk], from the forward.
        d_log_probs: [chunk], the gradient of the log-probs.
        entropy: [chunk], from the forward.
        d_entropy: [chunk], the gradient of the entropies; None: they have none.
    """
    excluded = truncation.cut(logits, targets) if truncation else None
    log_all = logits.sub_(lse[:, None])
    probs = torch.exp(log_all, out=scratch[: len(log_all)])
    if excluded is not None:
        probs.masked_fill_(excluded, 0.0)
    factor = d_log_probs.neg()[:, None]
    if d_entropy is not None:
        d_logits = log_all.add_(entropy[:, None]).mul_(d_entropy.neg()[:, None]).add_(factor).mul_(probs)
    else:
        d_logits = probs.mul_(factor)
    return d_logits.scatter_add_(-1, targets[:, None], d_log_probs[:, None])


def is_compiled(hidden: torch.Tensor, truncation: Truncation | None) -> bool:
    """Return True if a chunk's float32 arithmetic is compiled: on a CUDA device, where no token is excluded."""
    return hidden.is_cuda and truncation is None


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` compiled for any number of tokens. A machine compiles it once and keeps it on disk."""
    return torch.compile(function, dynamic=True)


def _at_least_float32(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def scores_of(
    product: torch.Tensor, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log-probs, entropies and logsumexps of a chunk, [chunk] each in at least float32.

    Args:
        product: [chunk, V], the matrix product h W^T.
        targets: [chunk] int64.
        temperature: Temperature of the rollout.
    """
    logits = _at_least_float32(product) / temperature
    top = logits.amax(-1, keepdim=True)
    exps = (logits - top).exp()
    total = exps.sum(-1)
    lse = top.squeeze(-1) + total.log()
    log_probs = logits.gather(-1, targets[:, None]).squeeze(-1) - lse
    entropy = lse - (exps * logits).sum(-1) / total
    return log_probs, entropy, lse


def gradient_of(
    product: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    lse: torch.Tensor,
    d_log_probs: torch.Tensor,
    entropy: torch.Tensor,
    d_entropy: torch.Tensor | None,
) -> torch.Tensor:
    """Return the gradient of `product`, [chunk, V] in its dtype.

    Args:
        product: [chunk, V], the matrix product h W^T.
        targets: [chunk] int64.
        temperature: Temperature of the rollout.
        lse: [chunk], from the forward.
        d_log_probs: [chunk], the gradient of the log-probs.
        entropy: [chunk], from the forward.
        d_entropy: [chunk], the gradient of the entropies; None: they have none.
    """
    log_all = _at_least_float32(product) / temperature - lse[:, None]
    probs = log_all.exp()
    is_target = torch.arange(product.shape[-1], device=product.device) == targets[:, None]
    d_logits = d_log_probs[:, None] * (is_target.to(probs.dtype) - probs)
    if d_entropy is not None:
        d_logits = d_logits - d_entropy[:, None] * probs * (log_all + entropy[:, None])
    return (d_logits / temperature).to(product.dtype)
