"""Compute log-probs and entropies of target tokens from hidden states, without a [T, V] tensor of logits.

With hidden states h [T, H], the vocabulary matrix W [V, H], logits l = h W^T / temperature and p = softmax(l), a token
with target y has

    log p_y = l_y - lse(l)              d log p_y / dl = 1_y - p
    H       = lse(l) - sum_j p_j l_j    dH / dl_j      = -p_j (l_j - lse(l) + H)

where lse is logsumexp and H the entropy. Tokens that top-k, top-p or min-p exclude (truncation.py) have l = -inf, so
p = 0 and no gradient.

Forward and backward process the tokens in chunks. The backward computes a chunk's logits again, which adds a fourth
matrix product to three, unless the forward stored them: it stores those of the first chunks, as many as fit into
`keep_bytes`, exactly as the matrix product returned them, so storing changes no bit. Nothing is approximated, and the
gradient of W is accumulated over chunks in float32.

On a CUDA device a chunk's logits exist in the precision of the weights only. What is computed from them in float32 is
one pass over them in the forward and one in the backward, which torch.compile makes of `_scores_of` and
`_gradient_of`: a dozen passes over float32 arrays took as long as the matrix products.

Tokens outside the mask `wanted` (prompt and tool output, whose log-probs enter no loss) are skipped. Both of their
outputs are 0, without gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import zip_longest
from typing import Any, NamedTuple

import torch

from .truncation import Truncation

CHUNK_TOKENS = 256
"""Least number of tokens in a chunk. Every chunk reads W and reads and writes its gradient, and with fewer tokens that
traffic outweighs the computation."""
CHUNK_BYTES = 64 << 20
"""Least size of a chunk's float32 logits in bytes. At the peak two arrays of a chunk's size exist."""
CUDA_CHUNK_TOKENS = 2048
"""`CHUNK_TOKENS` on a CUDA device. Smaller products leave most of the card idle, and reading and writing W's float32
gradient in every chunk would be most of the memory traffic."""


class Scores(NamedTuple):
    """Log-probs and entropies, both float32 in the shape of the targets."""

    log_probs: torch.Tensor
    entropy: torch.Tensor


class _Chunked(torch.autograd.Function):
    """The chunked head as an autograd function.

    apply(hidden [T, H], weight [V, H], bias [V] or None, targets [T] int64, temperature, entropy_grad, truncation,
    keep_bytes) -> log_probs [T], entropy [T]
    """

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
        entropy = torch.empty_like(log_probs)
        lse = torch.empty_like(log_probs)
        compiled = _is_compiled(hidden, truncation)
        scratch = None if compiled else _scratch(2, hidden, weight, dtype)
        stored_products: list[torch.Tensor] = []
        for part in _parts(len(hidden), weight):
            product = None
            is_stored = min(part.stop, len(hidden)) * len(weight) * weight.element_size() <= keep_bytes
            if compiled or is_stored:
                product = torch.nn.functional.linear(hidden[part], weight, bias)
            if is_stored:
                stored_products.append(product)
            if scratch is None:
                scores = _compile(_scores_of)(product, targets[part], temperature)
            else:
                logits = _logits(hidden[part], weight, bias, temperature, scratch[0], product)
                scores = _scores_in_place(logits, targets[part], truncation, scratch[1])
            log_probs[part], entropy[part], lse[part] = scores
        ctx.save_for_backward(hidden, targets, lse, entropy, *stored_products)
        # The parameters are kept as attributes and not by save_for_backward: ZeRO-3 frees them in place after this
        # module's forward and gathers them again, in place, before its backward.
        ctx.weight = weight
        ctx.bias = bias
        ctx.temperature = temperature
        ctx.entropy_grad = entropy_grad
        ctx.truncation = truncation
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return log_probs, entropy

    @staticmethod
    def backward(
        ctx: Any, d_log_probs: torch.Tensor, d_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, targets, lse, entropy, *stored_products = ctx.saved_tensors
        weight = ctx.weight
        bias = ctx.bias
        temperature = ctx.temperature
        d_entropy = d_entropy if ctx.entropy_grad else None
        d_hidden = torch.empty_like(hidden)
        compiled = _is_compiled(hidden, ctx.truncation)
        # The gradient of the entropy needs log p and p at the same time, the log-prob's only p.
        scratch = None if compiled else _scratch(1 + (d_entropy is not None), hidden, weight, lse.dtype)
        d_weight = None
        if ctx.needs_input_grad[1]:
            d_weight = torch.zeros(weight.shape, dtype=lse.dtype, device=weight.device)
        d_bias = None
        if bias is not None and ctx.needs_input_grad[2]:
            d_bias = torch.zeros(bias.shape, dtype=lse.dtype, device=bias.device)
        for part, product in zip_longest(_parts(len(hidden), weight), stored_products):
            if scratch is None:
                if product is None:
                    product = torch.nn.functional.linear(hidden[part], weight, bias)
                d_logits = _compile(_gradient_of)(
                    product,
                    targets[part],
                    temperature,
                    lse[part],
                    d_log_probs[part],
                    entropy[part],
                    None if d_entropy is None else d_entropy[part],
                )
            else:
                logits = _logits(hidden[part], weight, bias, temperature, scratch[0], product)
                d_logits = _gradient_in_place(
                    logits,
                    targets[part],
                    ctx.truncation,
                    scratch[-1],
                    lse[part],
                    d_log_probs[part],
                    entropy[part],
                    None if d_entropy is None else d_entropy[part],
                )
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


def _scores_in_place(
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


def _gradient_in_place(
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


def _is_compiled(hidden: torch.Tensor, truncation: Truncation | None) -> bool:
    """Return True if a chunk's float32 arithmetic is compiled: on a CUDA device, where no token is excluded."""
    return hidden.is_cuda and truncation is None


@cache
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` compiled for any number of tokens. A machine compiles it once and keeps it on disk."""
    return torch.compile(function, dynamic=True)


def _at_least_float32(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _scores_of(
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


def _gradient_of(
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


def _add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Compute total += a @ b in place.

    `total` [V, H] is larger than a chunk, so it is read and written only once where the dtypes allow it.
    """
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


def _chunk(weight: torch.Tensor) -> int:
    """Return the number of tokens in a chunk for this head [V, H]."""
    least = CUDA_CHUNK_TOKENS if weight.is_cuda else CHUNK_TOKENS
    return max(least, CHUNK_BYTES // (4 * len(weight)))


def _parts(tokens: int, weight: torch.Tensor) -> Iterator[slice]:
    """Return the slice of the tokens that each chunk covers; the last may end beyond `tokens`."""
    size = _chunk(weight)
    return (slice(i, i + size) for i in range(0, tokens, size))


def _scratch(arrays: int, hidden: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return working memory [arrays, chunk, V] that all chunks share.

    If every chunk allocated its own, a CPU would return it to the kernel and have it zeroed again each time.
    """
    return torch.empty(arrays, min(len(hidden), _chunk(weight)), len(weight), dtype=dtype, device=hidden.device)


def _logits(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    temperature: float,
    scratch: torch.Tensor,
    product: torch.Tensor | None,
) -> torch.Tensor:
    """Compute a chunk's logits, divided by the temperature, in `scratch`.

    The matrix product has the precision of the weights, as in the model itself; everything after it has that of
    `scratch`, at least float32.

    Args:
        hidden: [chunk, H].
        weight: [V, H].
        bias: [V] or None.
        temperature: Temperature of the rollout.
        scratch: [at least chunk, V]; overwritten.
        product: The matrix product [chunk, V] that the forward stored; None: compute it.

    Returns:
        [chunk, V], a view of `scratch`.
    """
    logits = scratch[: len(hidden)]
    if product is None and bias is None and hidden.dtype == weight.dtype == scratch.dtype:
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
    """Return the log-prob of each target token and the entropy of its distribution.

    Args:
        hidden: [..., H].
        weight: [V, H].
        targets: [...] int64.
        bias: [V]; None: the head has none.
        temperature: The logits are divided by it.
        truncation: Tokens that are excluded from the distribution; None: none are.
        entropy_grad: True if the entropy needs a gradient, which takes a second array of a chunk's size.
        wanted: [...] bool: the tokens to compute; None: all.
        keep_bytes: Bytes of logits that the forward may store for the backward. Ignored while gradients are off.

    Returns:
        Log-probs and entropies [...]; 0 where `wanted` is False.
    """
    kept = keep_bytes if torch.is_grad_enabled() else 0
    shape = targets.shape
    flat_hidden = hidden.reshape(-1, hidden.shape[-1])
    flat_targets = targets.reshape(-1)
    if wanted is None:
        scores = _Chunked.apply(flat_hidden, weight, bias, flat_targets, temperature, entropy_grad, truncation, kept)
        return Scores(*(x.view(shape) for x in scores))
    indices = wanted.reshape(-1).nonzero().squeeze(-1)
    scores = _Chunked.apply(
        flat_hidden[indices], weight, bias, flat_targets[indices], temperature, entropy_grad, truncation, kept
    )
    return Scores(*(x.new_zeros(len(flat_targets)).index_copy(0, indices, x).view(shape) for x in scores))


class ScoringHead:
    """Makes a model's output layer return scores in place of logits while `scoring` is active.

    The layer stays where it is in the model, so DeepSpeed gathers its weight around the call as usual. While `scoring`
    is active, what the model returns as logits is [..., 2]: log-prob and entropy of each position's target.
    """

    def __init__(self, layer: torch.nn.Linear, keep_bytes: int = 0) -> None:
        """Replace the layer's forward method. `keep_bytes`: see `chunked_scores`."""
        self._layer = layer
        self._plain_forward = layer.forward
        self._keep_bytes = keep_bytes
        self._arguments: dict[str, Any] | None = None
        layer.forward = self._forward

    @contextmanager
    def scoring(self, targets: torch.Tensor, **options: Any) -> Iterator[None]:
        """Make the layer return scores inside the block.

        Args:
            targets: [b, L] int64: the targets of the positions that the model runs on in the block.
            options: Further arguments of `chunked_scores`.
        """
        self._arguments = {"targets": targets, **options}
        try:
            yield
        finally:
            self._arguments = None

    def _forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._arguments is None:
            return self._plain_forward(hidden)
        scores = chunked_scores(
            hidden, self._layer.weight, bias=self._layer.bias, keep_bytes=self._keep_bytes, **self._arguments
        )
        return torch.stack(scores, -1)
