"""Utilisation: MFU by hand, devices by name, and nothing on a machine without a GPU."""

from dataclasses import replace

import pytest

from openrlhf_tir.learner.utilisation import gpu_metrics, mfu, peak_flops, tokens_of
from openrlhf_tir.types import KEEP, GroupKey
from tests.pipeline.fakes import group_of


def test_mfu_is_six_operations_per_parameter_and_token_over_the_peak():
    """1e9 parameters, 1e5 tokens: 6e14 operations in 2 s on 3 devices of 1e14 a second."""
    assert mfu(10**9, 10**5, 2.0, 3, 1e14) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("device", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H200", 989.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA L4", 121.0),
        ("NVIDIA H20", 148.0),
        ("NVIDIA GeForce RTX 4090", 165.0),
    ],
)
def test_the_peak_of_a_device_is_found_by_its_name(device, tflops):
    assert peak_flops(device) == tflops * 1e12


def test_a_device_that_is_not_known_has_no_peak():
    assert peak_flops("Some Accelerator") is None


def test_tokens_are_those_of_prompts_and_responses_of_every_valid_trajectory():
    meta = replace(group_of(GroupKey(0, 0), 0, KEEP)[0], prompt_tokens=10, response_tokens=[3, 4])
    assert tokens_of([meta, meta]) == 2 * (10 + 3 + 10 + 4)
    assert tokens_of([meta, meta], share_prompts=True) == 2 * (10 + 3 + 4)
    assert tokens_of([replace(meta, response_tokens=[])], share_prompts=True) == 0


def test_without_a_gpu_nothing_is_said():
    import torch

    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    assert gpu_metrics(10**9, 100, 1.0, 1) == {}
