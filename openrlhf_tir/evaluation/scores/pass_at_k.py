"""pass@k and pass^k of one problem, from n >= k samples of which c are right.

    pass@k = 1 - C(n - c, k) / C(n, k)    at least one of k is right. Chen et al. 2021, arXiv 2107.03374, equation 1
    pass^k = C(c, k) / C(n, k)            all k are right. Yao et al. 2024 (tau-bench), arXiv 2406.12045

Both are unbiased: they are the mean over all k-subsets of the n samples, so k = 1 gives c / n for both. The estimate
1 - (1 - c/n)^k would be biased.
"""

from __future__ import annotations

from math import comb


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the probability that at least one of k samples is right.

    Args:
        n: Number of samples.
        c: Number of right samples.
        k: Size of the subsets.

    Raises:
        ValueError: Unless 0 <= c <= n and 1 <= k <= n.
    """
    _check(n, c, k)
    return 1 - comb(n - c, k) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Return the probability that all of k samples are right. See `pass_at_k` for arguments and errors."""
    _check(n, c, k)
    return comb(c, k) / comb(n, k)


def _check(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"{c} right of {n} samples with k = {k}: wanted 0 <= c <= n and 1 <= k <= n.")


def ks_of(n: int) -> list[int]:
    """Return the values of k that are reported for n samples: 1, 2, 4, ... and n."""
    return sorted({*(2**exponent for exponent in range(n.bit_length()) if 2**exponent <= n), n})
