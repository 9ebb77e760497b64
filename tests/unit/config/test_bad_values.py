"""Values that every part of the configuration accepted and that failed, or did nothing, later."""

from __future__ import annotations

from datetime import date

import pytest

from env_servers.python_tir.run_code import RunCodeRequest
from openrlhf_tir.config.catalog import value_at
from openrlhf_tir.config.flags import Parser, add_config_flags, overrides_of
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.protocol import StepRequest


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"actor.adam_betas": ["0.9", "1.5"]}, r"actor\.adam_betas = '1.5'"),
        ({"critic.adam_betas": [-0.1, 0.9]}, r"critic.adam_betas = -0.1"),
        ({"actor.adam_betas": ["0.9"]}, r"actor.adam_betas = \['0.9'\].*2"),
        ({"actor.eps_clip_low_high": 0.2}, r"actor.eps_clip_low_high = 0.2.*2"),
        ({"actor.eps_clip_low_high": [-0.2, 0.2]}, r"actor.eps_clip_low_high = -0.2"),
        ({"eval.steps": -2}, r"eval.steps = -2"),
        ({"reward.weights": {"math": 0, "env": 0}}, r"reward\.weights"),
        ({"reward.remote_url": "http://a:1, ftp://b"}, r"reward\.remote_url .*'ftp://b'"),
        ({"ds.zpg": 3}, r"ds.zpg = 3.*8"),
        ({"run_dir": ""}, "run_dir = ''"),
        ({"env.step_timeout_s": 3601}, r"env.step_timeout_s = 3601.*3600"),
        ({"env.code_timeout_s": 3601}, r"env.code_timeout_s = 3601.*3600"),
        ({"envs.sums.step_timeout_s": 3601}, r"envs.sums.step_timeout_s = 3601.*3600"),
        ({"train.max_steps": True}, r"train.max_steps = True"),
        ({"actor.dual_clip": True}, r"actor.dual_clip = True"),
        ({"train.env_mask_from": True}, r"train\.env_mask_from = True .*'never'"),
        ({"actor.gradient_checkpointing_layers": True}, r"actor\.gradient_checkpointing_layers = True .*'auto'"),
        ({"reward.weights": {"env": True}}, r"reward\.weights = \{'env': True\}"),
        ({"actor.eps_clip_low_high": [0.2, False]}, r"actor\.eps_clip_low_high = \[0\.2, False\]"),
        ({"train.max_steps": "9" * 20}, r"train\.max_steps = '9+' .*64"),
        ({"pipeline.depth": "9" * 5000}, r"pipeline\.depth = '9"),
        ({"pipeline.fast_lane": "9" * 5000}, r"pipeline\.fast_lane = '9"),
        ({"pipeline.fast_lane": "00"}, r"pipeline\.fast_lane = '00'.*'off'"),
        ({"env.options": {"ends": [float("nan")]}}, r"env\.options = \{'ends': \[nan\]\}"),
        ({"env.options": {"day": date(2026, 1, 2)}}, r"env\.options = .*2026, 1, 2"),
        ({"env.tools": ["[" * 5000]}, r"^env\.tools: .*JSON"),
        (
            {"train.max_epochs": 50, "train.max_steps": 24, "pipeline.max_staleness": 99},
            r"train\.max_epochs = 50\D.* 50\b",
        ),
    ],
)
def test_it_is_refused_by_name_and_value(given, said):
    with pytest.raises(ConfigError, match=said):
        load(None, given)


def test_what_is_at_the_bounds_is_accepted():
    cfg = load(None, {"actor.adam_betas": [0, 0.999], "eval.steps": 0, "ds.zpg": 16})
    assert cfg.actor.adam_betas == (0, 0.999)
    env = load(None, {"env.step_timeout_s": 3600, "env.code_timeout_s": 3600}).env
    assert StepRequest(session_id="s", step_id=0, action="", deadline_s=env.step_timeout_s)
    assert RunCodeRequest(code="", language="python", run_timeout=env.code_timeout_s)
    assert load(None, {"reward.weights": {"math": 0, "env": 1}}).reward.weights["env"] == 1


@pytest.mark.parametrize("value", ["2026-01-02", "9" * 5000, "[" * 5000])
def test_an_option_on_the_command_line_that_toml_has_no_value_for_is_text(value):
    parser = Parser(allow_abbrev=False)
    add_config_flags(parser)
    args = parser.parse_args(["--env.options", f"name={value}"])
    assert overrides_of(args) == {"env.options": {"name": value}}


@pytest.mark.parametrize("setting", ["actor.model_name_or_path", "critic.model_name_or_path", "sft.eval_dataset"])
def test_unset_in_a_recipe_takes_a_text_back_that_the_recipe_below_sets(setting, tmp_path):
    section, _, name = setting.partition(".")
    (tmp_path / "below.toml").write_text(f'[{section}]\n{name} = "somewhere"\n[algo.advantage]\nestimator = "gae"\n')
    (tmp_path / "above.toml").write_text(f'extends = "below.toml"\n[{section}]\n{name} = "unset"\n')
    assert value_at(load(str(tmp_path / "above.toml")), setting) == ""


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('["actor.muon"]\nlr = 1.0\n', r"'actor\.muon' .*r\.toml"),
        ('"actor.l2" = 0.1\n', r"'actor\.l2' .*r\.toml"),
        (
            '[envs]\nurl = "http://x"\n',
            r"envs\.url .*r\.toml .*'http://x'.*\[envs\]",
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
    with pytest.raises(ConfigError, match="''") as caught:
        load("")
    assert caught.value.code == "unknown_recipe"
