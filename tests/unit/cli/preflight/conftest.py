"""A run that passes preflight."""

from __future__ import annotations

import json

import pytest

from openrlhf_tir.cli.rehearsal import Rehearsal
from tests.model_files import weights

from .runs import ON_CPU


@pytest.fixture
def ready(tmp_path):
    """Overrides of a run that passes: a model directory and two problems."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"hidden_size": 128, "num_attention_heads": 4}))
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(weights())
    data = tmp_path / "d.jsonl"
    data.write_text('{"prompt": "1+1?", "label": "2"}\n' * 2)
    return {**ON_CPU, "actor.model_name_or_path": str(model), "data.prompt_dataset": str(data)}


@pytest.fixture(autouse=True)
def nothing_is_played(monkeypatch):
    """These runs have no tokenizer; what `--check-only` plays is in tests/unit/cli/rehearsal."""
    monkeypatch.setattr("openrlhf_tir.cli.rehearsal.rehearse", lambda cfg, progress: Rehearsal())
