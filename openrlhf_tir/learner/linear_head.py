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

What is computed from one chunk's logits is in `chunk_scores`.

Tokens outside the mask `wanted` (prompt and tool output, whose log-probs enter no loss) are skipped. Both of their
outputs are 0, without gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, NamedTuple

import torch

from ..memory.bounds import HEAD_CHUNK_BYTES, HEAD_CHUNK_TOKENS
from .chunk_scores import compiled, gradient_in_place, gradient_of, is_compiled, scores_in_place, scores_of
from .truncation import Truncation

HALF = (torch.bfloat16, torch.float16)
CPU_MULTIPLE = 32
"""On a CPU, tokens in bf16 or fp16 are padded to a multiple of this number. oneDNN compiles and keeps kernels for each
number of rows: those of one number take 3.5 MB with the head of SmolLM2, so that a rank grew by 15 MB an update."""
SUM_BYTES = 4 << 20
"""Size of the part of W's float32 gradient that a CPU adds to at a time: a product of lower precision and its float32
copy then stay in the cache. As whole arrays they take twice the time and more memory than W itself."""


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
        in_one_pass = is_compiled(hidden, truncation)
        scratch = None if in_one_pass else _scratch(2, hidden, weight, dtype)
        stored_products: list[torch.Tensor] = []
        for part in _parts(len(hidden), weight):
            product = None
            is_stored = min(part.stop, len(hidden)) * len(weight) * weight.element_size() <= keep_bytes
            if in_one_pass or is_stored:
                product = torch.nn.functional.linear(hidden[part], weight, bias)
            if is_stored:
                stored_products.append(product)
            if scratch is None:
                scores = compiled(scores_of)(product, targets[part], temperature)
            else:
                logits = _logits(hidden[part], weight, bias, temperature, scratch[0], product)
                scores = scores_in_place(logits, targets[part], truncation, scratch[1])
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
        in_one_pass = is_compiled(hidden, ctx.truncation)
        # The gradient of the entropy needs log p and p at the same time, the log-prob's only p.
        scratch = None if in_one_pass else _scratch(1 + (d_entropy is not None), hidden, weight, lse.dtype)
        d_weight = None
        if ctx.needs_input_grad[1]:
            d_weight = torch.zeros(weight.shape, dtype=lse.dtype, device=weight.device)
        d_bias = None
        if bias is not None and ctx.needs_input_grad[2]:
            d_bias = torch.zeros(bias.shape, dtype=lse.dtype, device=bias.device)
        for part, product in zip_longest(_parts(len(hidden), weight), stored_products):
            d_entropy_of_part = None if d_entropy is None else d_entropy[part]
            if scratch is None:
                if product is None:
                    product = torch.nn.functional.linear(hidden[part], weight, bias)
                d_logits = compiled(gradient_of)(
                    product,
                    targets[part],
                    temperature,
                    lse[part],
                    d_log_probs[part],
                    entropy[part],
                    d_entropy_of_part,
                )
            else:
                logits = _logits(hidden[part], weight, bias, temperature, scratch[0], product)
                d_logits = gradient_in_place(
                    logits,
                    targets[part],
                    ctx.truncation,
                    scratch[-1],
                    lse[part],
                    d_log_probs[part],
                    entropy[part],
                    d_entropy_of_part,
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


def _add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Compute total += a @ b in place.

    `total` [V, H] is larger than a chunk, so it is read and written only once where the dtypes allow it.
    """
    if total.dtype == a.dtype:
        total.addmm_(a, b)
        return
    rows = len(total) if total.is_cuda else max(1, SUM_BYTES // (total[0].numel() * total.element_size()))
    for total_part, a_part in zip(total.split(rows), a.split(rows), strict=True):
        total_part += a_part @ b


def _chunk(weight: torch.Tensor) -> int:
    """Return the number of tokens in a chunk for this head [V, H]."""
    least = HEAD_CHUNK_TOKENS["cuda" if weight.is_cuda else "cpu"]
    return max(least, HEAD_CHUNK_BYTES // (4 * len(weight)))


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
    indices = None if wanted is None else wanted.reshape(-1).nonzero().squeeze(-1)
    if indices is not None:
        flat_hidden, flat_targets = flat_hidden[indices], flat_targets[indices]
    tokens = len(flat_targets)
    missing = -tokens % CPU_MULTIPLE if hidden.dtype in HALF and not hidden.is_cuda else 0
    if missing:
        flat_hidden = torch.nn.functional.pad(flat_hidden, (0, 0, 0, missing))
        flat_targets = torch.nn.functional.pad(flat_targets, (0, missing))
    padded = _Chunked.apply(flat_hidden, weight, bias, flat_targets, temperature, entropy_grad, truncation, kept)
    scores = [x[:tokens] for x in padded] if missing else padded
    if indices is None:
        return Scores(*(x.view(shape) for x in scores))
    return Scores(*(x.new_zeros(targets.numel()).index_copy(0, indices, x).view(shape) for x in scores))


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
