"""Code in a model's directory (auto_map of config.json) does not run in the learner, though openrlhf asks for it."""

from __future__ import annotations

import json

import pytest

from openrlhf_tir.config import Config
from tests.e2e.support.tiny_model import save_tiny

pytestmark = pytest.mark.slow  # importing openrlhf, transformers and DeepSpeed takes seconds


@pytest.fixture
def model_with_code(tmp_path):
    """A model of a known architecture, whose directory names modules that leave a file `ran`."""
    model = save_tiny(tmp_path / "model", scale=1.0)
    code = f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\nfrom transformers import *\n"
    (model / "modelling.py").write_text(code)
    config = json.loads((model / "config.json").read_text())
    architecture = config["architectures"][0]
    config["auto_map"] = {
        "AutoConfig": "modelling." + architecture.replace("ForCausalLM", "Config"),
        "AutoModel": "modelling." + architecture.replace("ForCausalLM", "Model"),
        "AutoModelForCausalLM": "modelling." + architecture,
    }
    (model / "config.json").write_text(json.dumps(config))
    return model


@pytest.mark.parametrize("sections", [{}, {"algo": {"advantage": {"estimator": "gae"}}}], ids=["policy", "critic"])
def test_the_code_of_a_model_is_not_run(model_with_code, sections, tmp_path, monkeypatch):
    import torch.distributed as dist

    from openrlhf_tir.learner import zero3

    from .plain_strategy import PlainStrategy

    monkeypatch.setattr(zero3, "ZeroStrategy", PlainStrategy)
    settings = {
        "actor": {"model_name_or_path": str(model_with_code), "num_gpus_per_node": 1},
        "ds": {"param_dtype": "fp32", "attn_implementation": "sdpa", "zero_stage": 2},
        **sections,
    }
    try:
        zero3.Zero3Rank(Config.model_validate(settings), 0, 1, "", 0)
    finally:
        dist.destroy_process_group()
    assert not (tmp_path / "ran").exists()
