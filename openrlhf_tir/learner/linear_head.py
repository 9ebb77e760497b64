"""Linear head: hidden states [T, H], vocabulary matrix [V, H], targets [T] -> log-probs and entropies [T], never a
tensor of [T, V] unless memory is given for it.

With logits l = h W^T / temperature, p = softmax(l), for target y of a token:

    log p_y = l_y - lse(l)              d log p_y / dl = 1_y - p
    H       = lse(l) - sum_j p_j l_j    dH / dl_j      = -p_j (l_j - lse(l) + H)

Tokens that top-k, top-p or min-p cut (truncation.py) have l = -inf: p = 0, and no gradient.

Forward and backward walk over the tokens in chunks. The backward computes a chunk's logits again, a fourth product of
matrices beside three, unless the forward kept them: as many chunks as `keep_bytes` holds, as the product gave them, so
that it changes no bit. Exact: no approximation, and what is accumulated over chunks (the gradient of W) is accumulated
in float32.

Tokens outside `wanted` (prompt and tool output, whose log-probs no loss looks at) are not computed: 0 in both outputs,
without gradient."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, NamedTuple

import torch

from .truncation import Truncation

CHUNK_TOKENS = 256
"""Tokens of a chunk, at least: each chunk reads W and reads and writes its gradient, which few do not outweigh."""
CHUNK_BYTES = 64 << 20
"""Bytes of a chunk's logits in float32, at least. At the peak two arrays of a chunk's size exist."""
CUDA_CHUNK_TOKENS = 2048
"""`CHUNK_TOKENS` of a CUDA device: smaller products leave most of the card idle, and W's gradient in float32, which
every chunk reads and writes, would be most of the traffic."""


class Scores(NamedTuple):
    """Both float32, of the targets' shape."""

    log_probs: torch.Tensor
    entropy: torch.Tensor


class _Chunked(torch.autograd.Function):
    """apply(hidden [T, H], weight [V, H], bias [V] or None, targets [T] int64, temperature, entropy_grad, truncation,
    keep_bytes) -> log_probs [T], entropy [T]."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        temperature: float,
        entropy_grad: bool,
        truncation: Truncation | None,
        keep_bytes: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        log_probs = torch.empty(len(hidden), dtype=dtype, device=hidden.device)
        entropy, lse = torch.empty_like(log_probs), torch.empty_like(log_probs)
        scratch = _scratch(2, hidden, weight, dtype)
        kept: list[torch.Tensor] = []
        for part in _parts(len(hidden), weight):
            product = None
            if min(part.stop, len(hidden)) * len(weight) * weight.element_size() <= keep_bytes:
                product = torch.nn.functional.linear(hidden[part], weight, bias)
                kept.append(product)
            logits = _logits(hidden[part], weight, bias, temperature, scratch[0], product)
            cut = truncation.cut(logits, targets[part]) if truncation else None
            if cut is not None:
                logits.masked_fill_(cut, -torch.inf)
            # as exact as logsumexp, in half its time on a CPU; torch's softmax adds up 152k of them with errors of 1e-5
            top = logits.amax(-1)
            exps = torch.sub(logits, top[:, None], out=scratch[1][: len(logits)]).exp_()
            total = exps.sum(-1)
            lse[part] = top + total.log()
            log_probs[part] = logits.gather(-1, targets[part, None]).squeeze(-1) - lse[part]
            logits = logits if cut is None else logits.masked_fill_(cut, 0.0)
            entropy[part] = lse[part] - exps.mul_(logits).sum(-1) / total
        ctx.save_for_backward(hidden, targets, lse, entropy, *kept)
        # Not saved like the others: under ZeRO-3 the parameter is cut up after this module's forward and put together
        # before its backward, in place.
        ctx.weight, ctx.bias, ctx.temperature, ctx.entropy_grad = weight, bias, temperature, entropy_grad
        ctx.truncation = truncation
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return log_probs, entropy

    @staticmethod
    def backward(
        ctx: Any, d_log_probs: torch.Tensor, d_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, targets, lse, entropy, *kept = ctx.saved_tensors
        weight, bias, temperature = ctx.weight, ctx.bias, ctx.temperature
        d_entropy = d_entropy if ctx.entropy_grad else None
        d_hidden, scratch = torch.empty_like(hidden), _scratch(1 + (d_entropy is not None), hidden, weight, lse.dtype)
        d_weight = torch.zeros(weight.shape, dtype=lse.dtype, device=weight.device) if ctx.needs_input_grad[1] else None
        d_bias = (
            torch.zeros(bias.shape, dtype=lse.dtype, device=bias.device)
            if bias is not None and ctx.needs_input_grad[2]
            else None
        )
        for part, product in zip_longest(_parts(len(hidden), weight), kept):
            logits = _logits(hidden[part], weight, bias, temperature, scratch[0], product)
            cut = ctx.truncation.cut(logits, targets[part]) if ctx.truncation else None
            log_all = logits.sub_(lse[part, None])
            probs = torch.exp(log_all, out=scratch[-1][: len(log_all)])
            if cut is not None:
                probs.masked_fill_(cut, 0.0)
            factor = d_log_probs[part].neg()[:, None]
            if d_entropy is not None:
                d_logits = (
                    log_all.add_(entropy[part, None]).mul_(d_entropy[part].neg()[:, None]).add_(factor).mul_(probs)
                )
            else:
                d_logits = probs.mul_(factor)
            d_logits.scatter_add_(-1, targets[part, None], d_log_probs[part, None])
            d_logits = (d_logits.div_(temperature) if temperature != 1.0 else d_logits).to(hidden.dtype)
            d_hidden[part] = d_logits @ weight
            if d_weight is not None:
                _add_product(d_weight, d_logits.T, hidden[part])
            if d_bias is not None:
                d_bias += d_logits.sum(0)
        return (
            d_hidden,
            None if d_weight is None else d_weight.to(weight.dtype),
            None if d_bias is None else d_bias.to(bias.dtype),
            None,
            None,
            None,
            None,
            None,
        )


def _add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """total += a @ b; in one pass over `total` [V, H], which is larger than a chunk, where the types are the same."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


def _chunk(weight: torch.Tensor) -> int:
    """Return the tokens of a chunk for this head [V, H]."""
    least = CUDA_CHUNK_TOKENS if weight.is_cuda else CHUNK_TOKENS
    return max(least, CHUNK_BYTES // (4 * len(weight)))


def _parts(tokens: int, weight: torch.Tensor) -> Iterator[slice]:
    size = _chunk(weight)
    return (slice(i, i + size) for i in range(0, tokens, size))


def _scratch(arrays: int, hidden: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[arrays, chunk, V]: what every chunk is computed in. New memory for each would be given back and zeroed again by
    the kernel each time, on a CPU."""
    return torch.empty(arrays, min(len(hidden), _chunk(weight)), len(weight), dtype=dtype, device=hidden.device)


def _logits(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    temperature: float,
    into: torch.Tensor,
    product: torch.Tensor | None,
) -> torch.Tensor:
    """[chunk, V] within `into`, at least float32: the product in the weights' precision, as the model itself computes
    it, the rest above it. `product`: as it was kept; None: it is computed."""
    logits = into[: len(hidden)]
    if product is None and bias is None and hidden.dtype == weight.dtype == into.dtype:
        torch.mm(hidden, weight.T, out=logits)
    else:
        logits.copy_(torch.nn.functional.linear(hidden, weight, bias) if product is None else product)
    return logits.div_(temperature) if temperature != 1.0 else logits


def chunked_scores(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    temperature: float = 1.0,
    truncation: Truncation | None = None,
    entropy_grad: bool = False,
    wanted: torch.Tensor | None = None,
    keep_bytes: int = 0,
) -> Scores:
    """hidden [..., H]; targets [...] int64; wanted [...] bool, None: all. Entropy has a gradient only when asked.

    `keep_bytes`: of logits that are kept for the backward pass, where there will be one."""
    asked = temperature, entropy_grad, truncation, keep_bytes if torch.is_grad_enabled() else 0
    shape, flat, labels = targets.shape, hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    if wanted is None:
        found = _Chunked.apply(flat, weight, bias, labels, *asked)
        return Scores(*(x.view(shape) for x in found))
    places = wanted.reshape(-1).nonzero().squeeze(-1)
    found = _Chunked.apply(flat[places], weight, bias, labels[places], *asked)
    return Scores(*(x.new_zeros(len(labels)).index_copy(0, places, x).view(shape) for x in found))


class ScoringHead:
    """Makes a model's output layer answer with scores instead of logits while it is told the targets.

    The layer stays where it is, so DeepSpeed gathers its weight around the call as ever. What the model returns as
    logits is then
    [..., 2]: log-prob and entropy of each position's target.
    """

    def __init__(self, layer: torch.nn.Linear, keep_bytes: int = 0) -> None:
        self._plain, self._keep_bytes = layer.forward, keep_bytes
        self._asked: dict[str, Any] | None = None
        self._layer = layer
        layer.forward = self._forward

    @contextmanager
    def scoring(self, targets: torch.Tensor, **asked: Any) -> Iterator[None]:
        """`targets` [b, L]: of the positions the model runs on in the block; `asked`: else of chunked_scores."""
        self._asked = {"targets": targets, **asked}
        try:
            yield
        finally:
            self._asked = None

    def _forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._asked is None:
            return self._plain(hidden)
        layer, kept = self._layer, self._keep_bytes
        return torch.stack(chunked_scores(hidden, layer.weight, bias=layer.bias, keep_bytes=kept, **self._asked), -1)
