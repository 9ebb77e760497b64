"""The user's own estimator is judged by the properties that it declares, as soon as the user's code is loaded."""

from __future__ import annotations

import pytest

from openrlhf_tir.algorithms.advantages import ESTIMATORS
from openrlhf_tir.cli.checks.names import check_names
from openrlhf_tir.config.problems import Problems
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError

OWN = (
    "from openrlhf_tir.algorithms.advantages import Estimator\n"
    "def plain(inputs): return inputs.trained_G\n"
    "with_critic = Estimator(plain, whiten=True, critic=True, by_group=True)\n"
    "by_group = Estimator(plain, whiten=False, by_group=True)\n"
)


def settings_refused(tmp_path, name: str, overrides: dict) -> set[str | None]:
    """Return the settings of the mistakes that are found once the estimator is loaded."""
    (tmp_path / "own.py").write_text(OWN)
    cfg = load(
        None, {"actor.num_gpus_per_node": 1, "algo.advantage.estimator": f"{tmp_path / 'own.py'}:{name}", **overrides}
    )
    problems = Problems()
    check_names(cfg, problems)
    try:
        problems.raise_any()
    except ConfigError as e:
        return {problem.setting for problem in e.problems}
    return set()


SHARED = {
    "ds.ring_attn_size": 2,
    "actor.num_gpus_per_node": 2,
    "ds.packing_samples": True,
    "ds.attn_implementation": "sdpa",
}
IN_TURNS = {"train.colocate_all": True, "pipeline.mode": "sync", "critic.optim": "muon"}
NO_CRITIC = [
    ({"rollout.agent": "external"}, "algo.advantage.estimator"),
    (SHARED, "ds.ring_attn_size"),
    (IN_TURNS, "train.colocate_all"),
]


@pytest.mark.parametrize(("overrides", "setting"), NO_CRITIC)
def test_what_a_critic_does_not_go_with_is_refused_for_an_estimator_that_declares_one(tmp_path, overrides, setting):
    assert settings_refused(tmp_path, "with_critic", overrides) == {setting}
    assert settings_refused(tmp_path, "by_group", overrides) == set()
    assert settings_refused(tmp_path, "plain", overrides) == set()


@pytest.mark.parametrize(("overrides", "setting"), NO_CRITIC)
def test_the_same_is_refused_for_every_registered_estimator_with_a_critic(overrides, setting):
    for name, estimator in ESTIMATORS.items():
        flags = {"actor.num_gpus_per_node": 1, **overrides, "algo.advantage.estimator": name}
        if estimator.critic:
            with pytest.raises(ConfigError) as e:
                load(None, flags)
            assert {problem.setting for problem in e.value.problems} == {setting}
        else:
            assert load(None, flags).algo.advantage.estimator == name


def test_a_model_of_the_critic_needs_an_estimator_that_declares_a_critic(tmp_path):
    model = {"critic.model_name_or_path": "org/reward"}
    assert settings_refused(tmp_path, "plain", model) == {"critic.model_name_or_path"}
    assert settings_refused(tmp_path, "with_critic", model) == set()


def test_credit_by_turn_needs_an_estimator_that_declares_that_its_group_is_enough(tmp_path):
    by_turn = {"algo.advantage.credit": "turn", "reward.name": "env"}
    assert settings_refused(tmp_path, "plain", by_turn) == {"algo.advantage.credit"}
    assert settings_refused(tmp_path, "by_group", by_turn) == set()


def test_credit_by_turn_is_refused_where_it_would_pay_rewards_in_place_of_the_users_function(tmp_path):
    by_turn = {"algo.advantage.credit": "turn", "reward.name": "env"}
    assert settings_refused(tmp_path, "with_critic", by_turn) == {"algo.advantage.credit"}
    assert settings_refused(tmp_path, "with_critic", {"reward.name": "env"}) == set()
    assert load(None, {**by_turn, "algo.advantage.estimator": "gae"}).algo.advantage.credit == "turn"


def test_a_configuration_is_read_without_running_the_estimator(tmp_path):
    missing = f"{tmp_path}/missing.py:mine"
    assert load(None, {"algo.advantage.estimator": missing, "actor.num_gpus_per_node": 1}).algo.advantage.estimator == (
        missing
    )
