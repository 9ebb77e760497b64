"""The reward model on a tiny classifier: transformers' own scores, and models that are none refused."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError

pytestmark = pytest.mark.slow  # imports transformers' models


def save(directory, kind: str, *, vocabulary: str = "", **config):
    """kind: a class of transformers."""
    import transformers

    from tests.e2e.support.tiny_model import make_model, make_tokenizer

    base = make_model(1, scale=8.0)
    for name, value in {"num_labels": 1, **config}.items():
        setattr(base.config, name, value)
    made = getattr(transformers, kind)(base.config)
    made.model.load_state_dict(base.model.state_dict())
    made.save_pretrained(directory)
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(vocabulary.split())
    tokenizer.save_pretrained(directory)
    return made.eval()


def loaded(tmp_path, **reward):
    from openrlhf_tir.engines.reward_model import RewardModel

    save(tmp_path / "policy", "Qwen2ForCausalLM")
    settings = {"name": "model", "model_name_or_path": str(tmp_path / "rm"), **reward}
    return RewardModel(
        Config(actor={"model_name_or_path": str(tmp_path / "policy")}, ds={"param_dtype": "fp32"}, reward=settings)
    )


def test_scores_are_the_classifiers_at_the_last_token_however_they_are_batched(tmp_path):
    import torch

    plain = save(tmp_path / "rm", "Qwen2ForSequenceClassification")
    model, sequences = loaded(tmp_path), [np.arange(2, 2 + n) for n in (3, 40, 7, 1)]

    async def all_at_once():
        return await asyncio.gather(*(model.score(ids) for ids in sequences))

    assert not torch.backends.cuda.cudnn_sdp_enabled()
    with torch.no_grad():
        expected = [plain(torch.tensor(ids)[None]).logits.item() for ids in sequences]
    assert asyncio.run(all_at_once()) == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) == 4


def test_scores_are_normalised_as_the_models_config_says(tmp_path):
    save(tmp_path / "rm", "Qwen2ForSequenceClassification", mean=2.0, std=0.5)
    plain, ids = loaded(tmp_path), np.arange(2, 9)
    normalised = loaded(tmp_path, normalize_enable=True)
    assert normalised.forward([ids])[0] == pytest.approx((plain.forward([ids])[0] - 2.0) / 0.5, abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "config", "fact"),
    [
        ("Qwen2ForCausalLM", {}, r"reward\.model_name_or_path .*score\.weight"),
        ("Qwen2ForSequenceClassification", {"num_labels": 3}, r"reward\.model_name_or_path .*score\.weight"),
        (
            "Qwen2ForSequenceClassification",
            {"vocabulary": "<tool>"},
            r"\(101 \w+\).*\(100\)",
        ),
    ],
)
def test_a_model_that_is_no_reward_model_of_the_policy_is_refused(tmp_path, kind, config, fact):
    save(tmp_path / "rm", kind, **config)
    with pytest.raises(ConfigError, match=fact):
        loaded(tmp_path)


def test_normalisation_without_figures_is_refused(tmp_path):
    save(tmp_path / "rm", "Qwen2ForSequenceClassification")
    assert "mean" not in json.loads((tmp_path / "rm" / "config.json").read_text())
    with pytest.raises(ConfigError, match=r"reward\.normalize_enable .*config\.json.* None .* None"):
        loaded(tmp_path, normalize_enable=True)
