"""What of a tensor changed, as a delta's loops find and apply it: exact, within its arrays, compiled beside other
work."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_tir.weights.delta import Piece, apply, take_over
from openrlhf_tir.weights.delta_loops import BLOCK, LANES


def roundtrip(old: np.ndarray, new: np.ndarray) -> Piece | None:
    made, kept = old.copy(), old.copy()
    piece = take_over(kept, new)
    assert kept.tobytes() == new.tobytes(), "the learner's own copy"
    if piece is None:
        assert (old == new).all()
    else:
        apply(piece, made)
        assert made.tobytes() == new.tobytes()
    return piece


@pytest.mark.slow
def test_a_changed_weight_of_bf16_takes_two_bytes():
    old = np.arange(1000, dtype=np.int16)
    new = old.copy()
    new[[3, 4, 100]] += [1, -1, 127]
    piece = roundtrip(old, new)
    assert (piece.gaps.tolist(), piece.differences.tolist(), piece.nbytes) == ([4, 1, 96], [1, -1, 127], 6)


def test_a_large_gap_and_a_large_difference_are_exact_too():
    old = np.zeros(4000, np.int16)
    new = old.copy()
    new[[700, 701, 3999]] = [-32768, -128, 5]
    piece = roundtrip(old, new)
    assert piece.gaps[:4].tolist() == [255, 255, 191, 1] and piece.wides.tolist() == [-32768, -128]


@pytest.mark.slow
@given(st.data(), st.sampled_from([np.int8, np.int16, np.int32, np.int64]), st.integers(1, 1200))
@pytest.mark.extended
def test_whatever_changes_comes_back_bit_by_bit(data, integer, n):
    """Every size of a weight, signs and exponents included, at any density."""
    bounds = st.integers(np.iinfo(integer).min, np.iinfo(integer).max)
    old = np.random.default_rng(n).integers(
        np.iinfo(integer).min, np.iinfo(integer).max, n, dtype=integer, endpoint=True
    )
    new = old.copy()
    for at, value in data.draw(st.dictionaries(st.integers(0, n - 1), bounds, max_size=20)).items():
        new[at] = value
    roundtrip(old, new)


@pytest.mark.parametrize("integer", [np.int8, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, LANES * 3, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + LANES + 5])
def test_nothing_or_the_ends_or_all_of_a_tensor_may_change_and_differences_wrap_around(integer, n):
    """At every length that the loops treat in another way."""
    low, high = np.iinfo(integer).min, np.iinfo(integer).max
    old = np.random.default_rng(n).integers(low, high, n, dtype=integer, endpoint=True)
    assert roundtrip(old, old.copy()) is None
    ends = old.copy()
    ends[:1], ends[-1:] = ends[:1] ^ 1, ends[-1:] ^ low
    roundtrip(old, ends)
    roundtrip(old, ~old)
    roundtrip(np.full(n, low, integer), np.full(n, high, integer))


@pytest.mark.parametrize(
    "piece",
    [
        Piece(np.array([9], np.uint8), np.array([1], np.int8), np.array([], np.int16)),
        Piece(np.array([0, 1], np.uint8), np.array([1, 1], np.int8), np.array([], np.int16)),
        Piece(np.array([1, 1], np.uint8), np.array([1], np.int8), np.array([], np.int16)),
        Piece(np.array([1], np.uint8), np.array([-128], np.int8), np.array([], np.int16)),
    ],
    ids=["beyond the end", "no gap", "lengths", "no value"],
)
def test_a_piece_of_another_tensor_changes_nothing(piece):
    data = np.arange(8, dtype=np.int16)
    with pytest.raises(ValueError):
        apply(piece, data)
    assert data.tolist() == list(range(8))


@given(
    st.lists(st.tuples(st.integers(0, 255), st.integers(-128, 127)), max_size=30),
    st.lists(st.integers(-(2**15), 2**15 - 1), max_size=5),
    st.integers(0, 1000),
)
def test_whatever_a_piece_holds_is_applied_to_its_tensor_or_changes_nothing(entries, wides, n):
    gaps, differences = (np.array([e[i] for e in entries], t) for i, t in enumerate((np.uint8, np.int8)))
    data, values = np.arange(n, dtype=np.int16), iter(wides)
    fits = entries and gaps.all() and gaps.sum(dtype=int) <= n and (differences == -128).sum() == len(wides)
    expected = data.copy()
    if fits:
        at = -1
        for gap, difference in entries:
            at += gap
            expected[at : at + 1] += np.int16(next(values) if difference == -128 else difference)
    with nullcontext() if fits else pytest.raises(ValueError):
        apply(Piece(gaps, differences, np.array(wides, np.int16)), data)
    assert data.tolist() == expected.tolist()


@pytest.mark.slow
def test_who_does_not_compare_weights_never_imports_the_compiler():
    code = "import openrlhf_tir.weights.node_copy, openrlhf_tir.weights.publisher, sys; print('numba' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "False\n"


@pytest.mark.slow
@pytest.mark.extended
def test_no_loop_writes_or_reads_beyond_its_arrays():
    """numba looks at every index only where it is told to before it compiles. Places are written four at a time, so
    each remainder of what a block and its last vector hold is tried."""
    code = """
import numpy as np
from openrlhf_tir.weights.delta import apply, take_over
from openrlhf_tir.weights.delta_loops import BLOCK
for same in [*range(9), 61, 62, 63, 64, 65]:
    for n in (BLOCK, 2 * BLOCK, BLOCK + 7):
        old = np.zeros(n, np.int16)
        new = np.ones(n, np.int16)
        new[:same] = 0
        piece = take_over(kept := old.copy(), new)
        apply(piece, old)
        assert (old == new).all() and (kept == new).all(), (same, n)
"""
    told = {**os.environ, "NUMBA_BOUNDSCHECK": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=told, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_the_first_delta_of_a_process_compiles_nothing():
    """It was done beside what followed the full push, on both sides."""
    code = """
import tempfile, threading
from pathlib import Path
import torch
from numba.core.event import install_recorder
from openrlhf_tir.learner import weights_file
from openrlhf_tir.learner.pushes.delta import write_delta
from openrlhf_tir.learner.pushes.last_push import LastPush
from openrlhf_tir.weights.delta import COMPILING
from openrlhf_tir.weights.node_copy import NodeCopy


weights_file.agree = lambda fault: None
module, last = torch.nn.Linear(700, 300).bfloat16(), LastPush()
with tempfile.TemporaryDirectory() as directory:
    path, node = Path(directory, "push", "v0.safetensors"), NodeCopy(keep=True, root=Path(directory, "node"))
    node.full(path, 0, weights_file.write_weights(module, path, rank=0, last=last))
    compiling = [thread for thread in threading.enumerate() if thread.name == COMPILING]
    for thread in compiling:
        thread.join()
    module.weight.data[3, 5] += 1
    with install_recorder("numba:compile") as compiled:
        path = Path(directory, "push", "v1.delta")
        node.delta(path, 1, *write_delta(module, path, last, base_version=0, rank=0))
    print(len(compiling), [event.data["dispatcher"] for _, event in compiled.buffer])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=110)
    assert ran.stdout.splitlines()[-1:] == ["2 []"], ran.stderr
