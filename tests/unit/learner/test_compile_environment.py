"""What a learner rank changes in its environment so that DeepSpeed can compile its own ops there."""

from __future__ import annotations

import pytest

from openrlhf_tir.learner.compile_environment import prepare_compilation


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("9.0a", "9.0"),
        ("8.0;9.0a+PTX", "8.0;9.0+PTX"),
        ("10.0f 12.0a", "10.0;12.0"),
        ("9.0 9.0a", "9.0"),
        ("9.0", "9.0"),
        ("Hopper", None),
    ],
)
def test_architectures_are_those_that_deepspeeds_builder_can_read(given, left):
    environ = {"TORCH_CUDA_ARCH_LIST": given}
    prepare_compilation(None, "13.0", environ)
    assert environ.get("TORCH_CUDA_ARCH_LIST") == left
    for entry in (left or "0.0").split(";"):  # as deepspeed/ops/op_builder/builder.py parses it
        assert [int(part.split("+")[0]) for part in entry.split(".")]


@pytest.mark.parametrize(
    ("nvcc", "torch", "skips"),
    [(13, "13.0", "1"), (12, "13.0", None), (None, "13.0", None), (13, None, None)],
)
def test_any_minor_version_of_nvcc_is_taken_and_another_major_one_is_not(nvcc, torch, skips):
    environ: dict[str, str] = {}
    prepare_compilation(nvcc, torch, environ)
    assert environ.get("DS_SKIP_CUDA_CHECK") == skips


def test_what_the_user_has_set_stays():
    environ = {"DS_SKIP_CUDA_CHECK": "0"}
    prepare_compilation(13, "13.0", environ)
    assert environ == {"DS_SKIP_CUDA_CHECK": "0"}
