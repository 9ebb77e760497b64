"""Models beside the policy are looked at before anything is loaded."""

from __future__ import annotations

import re

import numpy as np
import pytest
from safetensors.numpy import save_file

from openrlhf_tir.cli.checks.roles import check_roles
from openrlhf_tir.config import Config
from openrlhf_tir.data.hub import OFFLINE_VARIABLES
from openrlhf_tir.errors import ConfigError


def reward_model(tmp_path, **tensors):
    (tmp_path / "config.json").write_text("{}")
    save_file(
        {name.replace("__", "."): np.zeros(shape, np.float32) for name, shape in tensors.items()},
        tmp_path / "model.safetensors",
    )
    return Config(reward={"name": "model", "model_name_or_path": str(tmp_path)})


def test_a_reward_model_with_a_scalar_head_passes(tmp_path):
    assert check_roles(reward_model(tmp_path, score__weight=(1, 4), model__x=(4, 4))) == []


@pytest.mark.parametrize(
    ("tensors", "fact"),
    [
        ({"lm_head__weight": (9, 4)}, r"reward\.model_name_or_path = .* score\.weight (?!.* 2 )"),
        ({"score__weight": (2, 4)}, r"reward\.model_name_or_path = .* score\.weight .* 2 "),
    ],
)
def test_a_reward_model_without_a_scalar_head_is_refused(tmp_path, tensors, fact):
    with pytest.raises(ConfigError, match=fact):
        check_roles(reward_model(tmp_path, **tensors))


def test_scores_are_normalised_only_by_a_reward_model_that_has_mean_and_deviation(tmp_path):
    cfg = reward_model(tmp_path, score__weight=(1, 4))
    cfg = cfg.model_copy(update={"reward": cfg.reward.model_copy(update={"normalize_enable": True})})
    with pytest.raises(ConfigError, match=r"reward\.normalize_enable"):
        check_roles(cfg)
    (tmp_path / "config.json").write_text('{"mean": 0.0,')
    with pytest.raises(ConfigError, match=r"reward\.normalize_enable"):
        check_roles(cfg)
    (tmp_path / "config.json").write_text('{"mean": 0.0, "std": 2.5}')
    assert check_roles(cfg) == []


def test_a_critic_that_is_not_there_is_refused(tmp_path):
    cfg = Config(critic={"model_name_or_path": str(tmp_path / "absent")}, algo={"advantage": {"estimator": "gae"}})
    with pytest.raises(ConfigError, match=r"/absent'.* critic\.model_name_or_path") as error:
        check_roles(cfg)
    assert (error.value.code, error.value.setting) == ("no_model", "critic.model_name_or_path")


OF_THE_HUB = {
    "critic": {"critic": {"model_name_or_path": "nobody/no-model"}, "algo": {"advantage": {"estimator": "gae"}}},
    "reward": {"reward": {"name": "model", "model_name_or_path": "nobody/no-model"}},
}


@pytest.mark.parametrize("role", OF_THE_HUB)
def test_a_name_that_is_neither_here_nor_cached_is_refused_where_the_hub_may_not_be_asked(monkeypatch, role):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError) as error:
        check_roles(Config(**OF_THE_HUB[role]))
    assert (error.value.code, error.value.setting) == ("no_model", f"{role}.model_name_or_path")
    assert "nobody/no-model" in str(error.value) and "HF_HUB_OFFLINE" in str(error.value)
    for variable in OFFLINE_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    assert any("nobody/no-model" in fact for fact in check_roles(Config(**OF_THE_HUB[role])))


def test_the_reference_is_told_as_a_fact():
    of_loss, of_reward = (
        check_roles(Config(actor={"model_name_or_path": "base"}, algo={"kl": {"init_coef": 0.1, "use_loss": use_loss}}))
        for use_loss in (True, False)
    )
    assert re.search(r": base, .* loss \(k1\)", *of_loss) and re.search(r": base, .* reward \(k1\)", *of_reward)


@pytest.mark.parametrize(
    ("kl", "fact"),
    [
        ({"use_loss": True}, r"algo\.kl\.use_loss = True "),
        ({"target": 0.1}, r"algo\.kl\.target = 0\.1 "),
        (
            {"init_coef": 0.1, "horizon": 100},
            r"algo\.kl\.horizon = 100 .* algo\.kl\.target\b",
        ),
        ({"init_coef": 0.1, "use_loss": True, "unbiased_gradient": False}, r"algo\.kl\.unbiased_gradient"),
    ],
)
def test_a_kl_that_would_do_nothing_is_refused_by_name(kl, fact):
    with pytest.raises(ValueError, match=fact):
        Config(algo={"kl": kl})


def test_a_critic_without_an_estimator_that_uses_it_is_refused():
    with pytest.raises(
        ValueError, match=r"critic\.model_name_or_path .*algo\.advantage\.estimator = 'reinforce_baseline'"
    ):
        Config(critic={"model_name_or_path": "x"})
    with pytest.raises(ValueError, match=r"critic\.freezing_steps = 10 .*train\.max_steps = 10 "):
        Config(critic={"freezing_steps": 10}, train={"max_steps": 10}, algo={"advantage": {"estimator": "gae"}})


def test_a_policy_that_would_thaw_in_the_middle_of_a_batch_is_refused():
    """Two epochs: of updates 0, 1 | 2, 3 the first three cannot be the critic's alone."""
    gae, train = {"advantage": {"estimator": "gae"}}, {"max_steps": 10, "max_epochs": 2}
    with pytest.raises(ValueError, match=r"critic\.freezing_steps = 3 .* 2 .* 4\b"):
        Config(critic={"freezing_steps": 3}, train=train, algo=gae)
    assert Config(critic={"freezing_steps": 4}, train=train, algo=gae)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("model.safetensors", b"x" * 1000),
        ("model.safetensors.index.json", b"{}"),
        ("model.safetensors.index.json", b"{"),
        ("model.safetensors.index.json", b"version https://git-lfs.github.com/spec/v1\nsize 1"),
    ],
)
def test_a_reward_model_whose_weights_are_damaged_is_refused(tmp_path, file, text):
    cfg = reward_model(tmp_path, score__weight=(1, 4))
    (tmp_path / file).write_bytes(text)
    with pytest.raises(ConfigError, match=r"reward\.model_name_or_path = "):
        check_roles(cfg)
