"""Values that every part of the configuration accepted and that failed, or did nothing, later."""

from __future__ import annotations

import pytest

from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"actor.adam_betas": ["0.9", "1.5"]}, "actor.adam_betas = '1.5' is not accepted: input should be less than 1"),
        ({"critic.adam_betas": [-0.1, 0.9]}, "critic.adam_betas = -0.1 is not accepted"),
        ({"actor.adam_betas": ["0.9"]}, r"actor.adam_betas = \['0.9'\] is not accepted: it takes 2 values."),
        ({"actor.eps_clip_low_high": 0.2}, "actor.eps_clip_low_high = 0.2 is not accepted: it takes 2 values."),
        ({"actor.eps_clip_low_high": [-0.2, 0.2]}, "actor.eps_clip_low_high = -0.2 is not accepted"),
        ({"eval.steps": -2}, "eval.steps = -2 is not accepted"),
        ({"vllm.max_model_len": 0}, "vllm.max_model_len = 0 is not accepted"),
        ({"vllm.max_model_len": 100}, "vllm.max_model_len = 100 tokens are fewer than data.max_len = 10240"),
        ({"reward.weights": {"math": 0, "env": 0}}, "are all 0, so every reward would be"),
        ({"reward.remote_url": "http://a:1, ftp://b"}, "reward.remote_url has 'ftp://b', which is neither a Python"),
        ({"ds.zpg": 3}, "ds.zpg = 3 does not divide the 8 learner ranks"),
        ({"run_dir": ""}, "run_dir = '' is not accepted: a path is wanted, and the text is empty"),
        ({"train.max_steps": True}, "train.max_steps = True is not accepted: a whole number is wanted"),
        ({"actor.dual_clip": True}, "actor.dual_clip = True is not accepted: a number is wanted"),
        (
            {"train.max_epochs": 50, "train.max_steps": 24, "pipeline.max_staleness": 99},
            r"train.max_epochs = 50\). Use 50\.",
        ),
    ],
)
def test_it_is_refused_by_name_and_value(given, said):
    with pytest.raises(ConfigError, match=said):
        load(None, given)


def test_what_is_at_the_bounds_is_accepted():
    cfg = load(None, {"actor.adam_betas": [0, 0.999], "eval.steps": 0, "ds.zpg": 16, "vllm.max_model_len": 10240})
    assert cfg.actor.adam_betas == (0, 0.999)
    assert load(None, {"reward.weights": {"math": 0, "env": 1}}).reward.weights["env"] == 1


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('["actor.muon"]\nlr = 1.0\n', "'actor.muon' in recipe .* is one name, as it is quoted."),
        ('"actor.l2" = 0.1\n', "'actor.l2' in recipe .* is one name, as it is quoted."),
        (
            '[envs]\nurl = "http://x"\n',
            r"envs.url in recipe .* is 'http://x', and \[envs\] holds environments by name.",
        ),
    ],
)
def test_a_recipe_whose_sections_are_none_says_how_to_write_them(toml, said, tmp_path):
    """The first two ended in a KeyError."""
    (tmp_path / "r.toml").write_text(toml)
    with pytest.raises(ConfigError, match=said):
        load(str(tmp_path / "r.toml"))


def test_a_recipe_without_a_name_is_not_the_defaults():
    """`--recipe "$RECIPE"` in a script that did not set it."""
    with pytest.raises(ConfigError, match="Recipe '' is neither a file nor the name of a recipe"):
        load("")
