"""Delta loops: those of delta.py over elements. numba compiles them when a process first calls one, which takes a
second; they let go of the interpreter's lock. Imported there and then only: numba is large.

Arrays are [n] signed integers of one size: 1, 2, 4 or 8 bytes. What is added or subtracted wraps around.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.cpython.unsafe.numbers import trailing_zeros
from numba.extending import intrinsic

LANES = 64
BLOCK = 1024
"""Elements looked at before those that differ are written out: they stay in the core's first cache. Multiple of
LANES."""
AT_ONCE = 4
"""Places written down whether there are so many or not: a branch for each would be guessed wrong too often."""
MAX_GAP = 255
WIDE = -128
"""What stands in place of a difference that int8 does not hold."""


@intrinsic
def _differ(typing, old, new, begin):
    """-> int64 whose bit i says whether element `begin` + i differs, for LANES of them: a few vector instructions,
    which numba has no name for."""

    def code(context, builder, signature, args):
        width = signature.args[0].dtype.bitwidth
        vector = ir.VectorType(ir.IntType(width), LANES)
        both = []
        for kind, array in zip(signature.args[:2], args[:2], strict=True):
            first = builder.gep(context.make_array(kind)(context, builder, array).data, [args[2]])
            both.append(builder.load(builder.bitcast(first, vector.as_pointer()), align=1))
        return builder.bitcast(builder.icmp_unsigned("!=", *both), ir.IntType(LANES))

    return types.int64(old, new, types.intp), code


@intrinsic
def _ones(typing, bits):
    """How many."""

    def code(context, builder, signature, args):
        return builder.ctpop(args[0])

    return bits(bits), code


@njit(nogil=True)
def take_over(old, new, gaps, differences, wides):
    """`old` becomes `new`, and what that changed is written to the other three, which have room for n each.
    -> how many gaps, how many wides."""
    places = np.empty(BLOCK, np.int32)
    entries, wide, last = 0, 0, -1
    for block in range(0, len(new), BLOCK):
        end = min(block + BLOCK, len(new))
        whole = end - (end - block) % LANES
        found = 0
        for begin in range(block, whole, LANES):
            rest = _differ(old, new, begin)
            after, k = found + _ones(rest), found
            for _ in range(AT_ONCE):  # without looking: in most cases there are some, and these are all
                places[k] = begin + trailing_zeros(rest)
                rest &= rest - 1
                k += 1
            while k < after:
                for _ in range(AT_ONCE):
                    places[k] = begin + trailing_zeros(rest)
                    rest &= rest - 1
                    k += 1
            found = after
        for alone in range(whole, end):
            places[found] = alone
            found += old[alone] != new[alone]
        for k in range(found):
            place = places[k]
            at = np.uint64(place)  # unsigned: an index that may be negative is looked at each time
            gap = place - last
            while gap > MAX_GAP:
                gaps[entries], differences[entries] = MAX_GAP, 0
                entries += 1
                gap -= MAX_GAP
            difference = new[at] - old[at]
            if not WIDE < difference <= 127:
                wides[wide], difference = difference, WIDE
                wide += 1
            gaps[entries], differences[entries] = gap, difference
            entries += 1
            last = place
            old[at] = new[at]
    return entries, wide


@njit(nogil=True)
def extent(gaps, differences):
    """-> the elements that a piece reaches over, 0 when a gap is 0; how many wides it needs."""
    elements, wide, least = 0, 0, MAX_GAP
    for k in range(len(gaps)):
        elements += gaps[k]
        wide += differences[k] == WIDE
        least = min(least, gaps[k])
    return elements if least else 0, wide


@njit(nogil=True)
def apply(gaps, differences, wides, data):
    """A piece whose extent is that of `data` or less."""
    at, wide = -1, 0
    for k in range(len(gaps)):
        at += gaps[k]
        if differences[k] == WIDE:
            data[at] += wides[wide]
            wide += 1
        else:
            data[at] += differences[k]
