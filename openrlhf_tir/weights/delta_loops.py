"""The loops of delta.py over elements, compiled by numba. They release the GIL.

numba compiles a loop when a process first calls it, which takes a second. delta.py imports this module only at that
moment, because numba is large.

Arrays are [n] signed integers of one size: 1, 2, 4 or 8 bytes. Sums and differences wrap around.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.cpython.unsafe.numbers import trailing_zeros
from numba.extending import intrinsic

LANES = 64
"""Elements that are compared at once, by a few vector instructions."""
BLOCK = 1024
"""Elements that are compared before the changed ones are encoded, so that they stay in the core's L1 cache. A multiple
of LANES."""
AT_ONCE = 4
"""Indices that are written without checking whether there are that many: a branch for each would be mispredicted too
often."""
MAX_GAP = 255
WIDE = -128
"""Marks a difference that does not fit into int8."""


@intrinsic
def _differ(typing, old, new, begin):
    """Compare LANES elements from `begin` on, and return an int64 whose bit i is 1 if element `begin` + i differs.

    This is LLVM code because numba has no function for these vector instructions.
    """

    def code(context, builder, signature, args):
        width = signature.args[0].dtype.bitwidth
        vector = ir.VectorType(ir.IntType(width), LANES)
        vectors = []
        for kind, array in zip(signature.args[:2], args[:2], strict=True):
            first = builder.gep(context.make_array(kind)(context, builder, array).data, [args[2]])
            vectors.append(builder.load(builder.bitcast(first, vector.as_pointer()), align=1))
        return builder.bitcast(builder.icmp_unsigned("!=", *vectors), ir.IntType(LANES))

    return types.int64(old, new, types.intp), code


@intrinsic
def _ones(typing, bits):
    """Return the number of 1 bits."""

    def code(context, builder, signature, args):
        return builder.ctpop(args[0])

    return bits(bits), code


@njit(nogil=True)
def take_over(old, new, gaps, differences, wides):
    """Turn `old` into `new`, and write what changed to the other three arrays, which have space for n elements each.

    Returns the number of gaps and the number of wides.
    """
    changed = np.empty(BLOCK, np.int32)
    entries = 0
    wide = 0
    last = -1
    for block in range(0, len(new), BLOCK):
        end = min(block + BLOCK, len(new))
        vector_end = end - (end - block) % LANES
        # 1. Collect the indices of the block's changed elements.
        count = 0
        for begin in range(block, vector_end, LANES):
            bits = _differ(old, new, begin)
            count_after = count + _ones(bits)
            k = count
            # AT_ONCE indices are written even if there are fewer. In most cases there are some and these are all; what
            # is too much is overwritten later.
            for _ in range(AT_ONCE):
                changed[k] = begin + trailing_zeros(bits)
                bits &= bits - 1
                k += 1
            while k < count_after:
                for _ in range(AT_ONCE):
                    changed[k] = begin + trailing_zeros(bits)
                    bits &= bits - 1
                    k += 1
            count = count_after
        for single in range(vector_end, end):
            changed[count] = single
            count += old[single] != new[single]
        # 2. Encode and replace them.
        for k in range(count):
            index = changed[k]
            at = np.uint64(index)  # numba checks a signed index for being negative every time
            gap = index - last
            while gap > MAX_GAP:
                gaps[entries] = MAX_GAP
                differences[entries] = 0
                entries += 1
                gap -= MAX_GAP
            difference = new[at] - old[at]
            if not WIDE < difference <= 127:
                wides[wide] = difference
                difference = WIDE
                wide += 1
            gaps[entries] = gap
            differences[entries] = difference
            entries += 1
            last = index
            old[at] = new[at]
    return entries, wide


@njit(nogil=True)
def extent(gaps, differences):
    """Return the number of elements that a piece covers (0 if it is invalid because a gap is 0), and of its wides."""
    elements = 0
    wide = 0
    least = MAX_GAP
    for k in range(len(gaps)):
        elements += gaps[k]
        wide += differences[k] == WIDE
        least = min(least, gaps[k])
    return elements if least else 0, wide


@njit(nogil=True)
def apply(gaps, differences, wides, data):
    """Add a piece to `data`, which must be at least as long as the piece's extent: it is not checked here."""
    at = -1
    wide = 0
    for k in range(len(gaps)):
        at += gaps[k]
        if differences[k] == WIDE:
            data[at] += wides[wide]
            wide += 1
        else:
            data[at] += differences[k]
