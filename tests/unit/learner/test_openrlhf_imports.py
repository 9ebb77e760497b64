"""What openrlhf loads at its import, and that nothing of the stand-ins is left afterwards."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
optimization = pytest.importorskip("transformers.optimization")

from openrlhf_tir.learner.openrlhf_imports import without_heavy_imports  # noqa: E402


def test_inside_the_block_functions_are_not_compiled_and_the_trainer_is_not_loaded(monkeypatch):
    monkeypatch.delitem(sys.modules, "transformers.trainer", raising=False)

    def double(x):
        return 2 * x

    with without_heavy_imports():
        from transformers.trainer import get_scheduler

        assert torch.compile(double) is torch.compile(dynamic=True)(double) is double
    assert get_scheduler is optimization.get_scheduler


def test_after_the_block_both_are_the_real_ones(monkeypatch):
    monkeypatch.delitem(sys.modules, "transformers.trainer", raising=False)
    compile_function = torch.compile
    with pytest.raises(KeyboardInterrupt), without_heavy_imports():
        raise KeyboardInterrupt
    assert torch.compile is compile_function
    assert "transformers.trainer" not in sys.modules


RANK = """
import sys
import openrlhf_tir.learner.zero3
from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam  # as DeepSpeed does for every optimizer

assert not {"pandas", "datasets", "torch._inductor.lowering"} & sys.modules.keys()
from transformers.trainer import Trainer
"""


@pytest.mark.extended  # it imports all that a rank does
def test_a_rank_does_without_them_and_the_real_trainer_can_be_imported_afterwards():
    env = {**os.environ, "DS_ACCELERATOR": "cpu"}
    done = subprocess.run([sys.executable, "-c", RANK], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
