"""Digests of weights: what they depend on, and what they do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from openrlhf_tir.errors import WeightsUnverified
from openrlhf_tir.weights.digest import digest_file, tensors_digest


def test_the_digest_of_a_file_is_that_of_the_tensors_in_any_order(tmp_path):
    from safetensors.torch import save_file

    tensors = {
        "b.w": torch.arange(6.0).reshape(2, 3),
        "a": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "s": torch.tensor(7),
    }
    save_file(tensors, tmp_path / "w.safetensors", metadata={"note": "does not count"})
    assert (
        digest_file(tmp_path / "w.safetensors")
        == tensors_digest(tensors.items())
        == tensors_digest(reversed(tensors.items()))
    )


def test_numpy_and_torch_tensors_have_the_same_digest():

    a = np.arange(4, dtype=np.float32).reshape(2, 2).T  # not contiguous
    assert (
        tensors_digest([("x", a)])
        == tensors_digest([("x", torch.from_numpy(a))])
        == tensors_digest([("x", np.array([[0, 2], [1, 3]], np.float32))])
    )


@pytest.mark.parametrize(
    "other",
    [
        ("x", np.array([1.0, np.nextafter(np.float32(2), np.float32(3))], np.float32)),
        ("y", np.array([1.0, 2.0], np.float32)),
        ("x", np.array([[1.0, 2.0]], np.float32)),
        ("x", np.array([1.0, 2.0], np.float32).view(np.int32)),
    ],
    ids=["one bit", "name", "shape", "dtype"],
)
def test_one_changed_bit_name_shape_or_dtype_changes_the_digest(other):
    assert tensors_digest([other]) != tensors_digest([("x", np.array([1.0, 2.0], np.float32))])


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:5], lambda b: b"", lambda b: b"\xff" * 64, lambda b: b + b"x"]
)
def test_a_damaged_file_is_named(tmp_path, damage):
    from safetensors.numpy import save

    path = tmp_path / "w.safetensors"
    path.write_bytes(damage(save({"x": np.ones(8, np.float32)})))
    with pytest.raises(WeightsUnverified, match=r"w\.safetensors"):
        digest_file(path)
