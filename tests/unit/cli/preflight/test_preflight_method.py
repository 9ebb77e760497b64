"""Preflight of the method: settings that are right by themselves and a mistake together are remarked on before a run,
and those that could train nothing are refused."""

from __future__ import annotations

import re

import pytest

from openrlhf_tir.algorithms.kl import Coefficient
from openrlhf_tir.cli import main
from openrlhf_tir.cli.checks.method import remarks
from openrlhf_tir.cli.preflight import check
from openrlhf_tir.config.settings import RECIPES, load
from openrlhf_tir.errors import ConfigError

from .runs import CPU, refused

GSPO = {"actor.policy_loss_type": "gspo", "actor.eps_clip_low_high": [3e-4, 4e-4]}
ASYNC = {"pipeline.mode": "pipeline"}
IN_REWARD = {"algo.kl.init_coef": 0.001, "algo.kl.use_loss": False}


def of(settings: dict) -> list[str]:
    return [*remarks(load(None, settings))]


IS_GSPO = "actor.policy_loss_type = 'gspo'"
MISTAKES = [
    ({"actor.policy_loss_type": "gspo"}, ("actor.eps_clip_low_high = 0.2 0.28", IS_GSPO)),
    (
        {"actor.policy_loss_type": "gspo", "actor.eps_clip_low_high": [0.2, 0.2]},
        ("actor.eps_clip_low_high = 0.2 0.2", IS_GSPO),
    ),
    (GSPO | {"actor.dual_clip": 3.0}, ("actor.dual_clip = 3", IS_GSPO)),
    (
        {"actor.eps_clip_low_high": [3e-4, 4e-4]},
        ("actor.eps_clip_low_high = 0.0003 0.0004", "actor.policy_loss_type = 'ppo'"),
    ),
    (
        {"algo.advantage.is_correction_level": "seq"},
        ("is_correction_threshold = 0.5 5", "algo.advantage.is_correction_level = 'seq'"),
    ),
    (GSPO, ("algo.advantage.estimator = 'reinforce_baseline'", IS_GSPO)),
    (
        {"actor.loss_agg_mode": "seq-mean-token-mean", "algo.advantage.estimator": "opo"},
        ("algo.advantage.estimator = 'opo'", "actor.loss_agg_mode = 'seq-mean-token-mean'"),
    ),
    (
        {"actor.loss_agg_mode": "seq-mean-token-mean", "algo.advantage.estimator": "gae"},
        ("algo.advantage.estimator = 'gae'", "actor.loss_agg_mode = 'seq-mean-token-mean'"),
    ),
    (GSPO | {"algo.advantage.estimator": "gae"}, ("algo.advantage.estimator = 'gae'", IS_GSPO, "'ppo'")),
    (
        GSPO | {"algo.advantage.estimator": "reinforce", "algo.advantage.gamma": 0.99},
        ("algo.advantage.gamma = 0.99", IS_GSPO, "'ppo'"),
    ),
    (
        GSPO | IN_REWARD | {"algo.advantage.estimator": "group_norm"},
        ("algo.kl.init_coef = 0.001", IS_GSPO, "algo.kl.use_loss"),
    ),
    (
        {"algo.advantage.estimator": "gae", "algo.advantage.gamma": 0.99},
        ("algo.advantage.gamma = 0.99", " 100 ", "rollout.max_new_tokens = "),
    ),
    (IN_REWARD | {"algo.kl.estimator": "k3"}, ("algo.kl.estimator = 'k3'",)),
    (ASYNC | {"actor.pi_old": "learner"}, ("actor.pi_old = 'learner'", "S = 4")),
    ({"ds.lora.rank": 16}, ("actor.learning_rate = 1e-06", "ds.lora.rank = 16")),
]


@pytest.mark.parametrize(("settings", "named"), MISTAKES, ids=[" ".join(named)[:60] for _, named in MISTAKES])
def test_a_combination_that_is_surely_a_mistake_gets_one_remark_with_its_settings(settings, named):
    lines = of(settings)
    assert sum(all(setting in line for setting in named) for line in lines) == 1, lines


@pytest.mark.parametrize(
    "settings",
    [
        {},
        GSPO | {"algo.advantage.estimator": "group_norm"},
        GSPO | IN_REWARD | {"algo.advantage.estimator": "rloo", "algo.kl.use_loss": True},
        {"actor.loss_agg_mode": "seq-mean-token-sum-norm"},  # every token weighs the same
        {"actor.loss_agg_mode": "seq-mean-token-mean", "algo.advantage.estimator": "group_norm"},
        {"actor.policy_loss_type": "cispo", "actor.eps_clip_low_high": [1.0, 4.0]},
        {"actor.policy_loss_type": "cispo", "actor.eps_clip_low_high": [0.005, 0.005]},
        {"actor.policy_loss_type": "pg", "algo.advantage.estimator": "gae"},
        {"algo.advantage.is_correction_level": "token"},
        {"algo.advantage.is_correction_level": "seq", "algo.advantage.is_correction_threshold": [0.99, 1.01]},
        {
            "algo.advantage.is_correction_level": "seq",
            "algo.advantage.is_correction_gating": "binary_kl",
            "algo.advantage.is_correction_threshold": [0.02],
        },
        IN_REWARD,
        {"algo.advantage.estimator": "gae", "algo.advantage.gamma": 0.999},
        {"algo.advantage.estimator": "reinforce", "algo.advantage.gamma": 0.99, "rollout.max_new_tokens": 512},
        {"pipeline.mode": "sync", "actor.pi_old": "learner"},
        ASYNC | {"actor.pi_old": "learner", "train.batch_size": 512},
        {"ds.lora.rank": 16, "actor.learning_rate": 1e-5},
    ],
)
def test_what_fits_together_is_not_remarked_on(settings):
    assert of(settings) == []


def test_an_estimator_of_ones_own_says_whether_it_is_whitened(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from openrlhf_tir.algorithms.advantages import Estimator\n"
        "def plain(inputs): return [r * m for r, m in zip(inputs.rewards_G, inputs.trained_G)]\n"
        "white = Estimator(plain, whiten=True)\n"
    )
    by_name = {
        name: of(GSPO | {"algo.advantage.estimator": f"{tmp_path}/mine.py:{name}"}) for name in ("plain", "white")
    }
    assert by_name["plain"] == [] and len(by_name["white"]) == 1
    assert f"algo.advantage.estimator = '{tmp_path}/mine.py:white'" in by_name["white"][0]


@pytest.mark.slow
def test_no_recipe_that_is_shipped_is_remarked_on():
    """But for ZeroTIR's, whose official code recomputes the denominator of a ratio over tokens that may be one update
    old: the remark is true of it."""
    found = {path.stem: [*remarks(load(path.stem))] for path in RECIPES.glob("*.toml")}
    configs = {name: load(name) for name in found}
    learners = {
        n
        for n, c in configs.items()
        if c.actor.pi_old == "learner" and c.updates_per_batch == c.pipeline.requested_staleness == 1
    }
    assert {"zerotir_7b", "zerotir_32b", "zerotir_ppo_7b", "zero_tir_rl"} <= learners
    assert all(len(found[name]) == 1 and found[name][0].startswith("actor.pi_old = 'learner'") for name in learners)
    assert len(found) > 20 and {name for name, said in found.items() if said} == learners


def test_a_run_tells_remarks_before_it_starts_and_is_not_refused(ready, capsys, env_server):
    flags = [f"--{key}={value}" for key, value in ready.items()]
    assert main(["train", "--check-only", *flags, "--env.url", env_server.url, "--actor.policy_loss_type", "gspo"]) == 0
    remarked = [line for line in capsys.readouterr().out.splitlines() if line.startswith("check: ") and "gspo" in line]
    assert [line.split()[1] for line in remarked] == ["actor.eps_clip_low_high", "algo.advantage.estimator"]


def test_data_that_end_before_the_schedule_of_the_learning_rate_are_told(ready):
    plain, scheduled = (
        [fact for fact in check(load(None, {**ready, **schedule}), machine=CPU) if "train.max_steps" in fact]
        for schedule in ({}, {"actor.lr_scheduler": "cosine"})
    )
    assert re.search(r" 1 .*train\.max_steps = 400 .*train\.num_episodes", *plain)
    assert ["actor.lr_scheduler" in fact for fact in (*plain, *scheduled)] == [False, True]


@pytest.mark.parametrize("estimator", ["reinforce_baseline", "rloo", "group_norm", "dr_grpo", "opo"])
def test_a_group_of_one_has_nothing_to_compare(ready, estimator):
    one = {"rollout__n_samples_per_prompt": 1, "rollout__min_valid": 1, "filter__names": []}
    said = refused(ready, **one, algo__advantage__estimator=estimator)
    assert re.search(f"algo.advantage.estimator = '{estimator}' .*rollout.n_samples_per_prompt = 1", said)


@pytest.mark.parametrize("estimator", ["flash_reinforce", "reinforce", "gae"])
def test_a_group_of_one_is_trained_where_no_filter_drops_it(ready, estimator):
    one = {"rollout.n_samples_per_prompt": 1, "rollout.min_valid": 1, "algo.advantage.estimator": estimator}
    assert check(load(None, {**ready, **one, "filter.names": []}), machine=CPU)
    said = refused({**ready, **one})
    assert re.search("filter.names = .* 'zero_variance', .*rollout.n_samples_per_prompt = 1", said)


def test_a_policy_that_is_sampled_greedily_has_nothing_to_learn_from(ready):
    assert "rollout.top_k = 1 " in refused(ready, rollout__top_k=1)


@pytest.mark.parametrize(("horizon", "value"), [(2048, 0.008), (409, -0.00001), (None, 0.0096)])
def test_a_coefficient_of_the_kl_that_one_batch_would_turn_round_is_refused(ready, horizon, value):
    """By 1 - 0.2 * samples / horizon, where the KL is still 0."""
    beta = Coefficient(0.01, target=0.1, horizon=horizon or 10_000)
    beta.update(0.0, 2048)
    assert beta.value == pytest.approx(value, abs=2e-5)
    kl = {"algo.kl.init_coef": 0.01, "algo.kl.target": 0.1} | ({"algo.kl.horizon": horizon} if horizon else {})
    batch = {"rollout.batch_size": 2, "rollout.n_samples_per_prompt": 1024}
    if value > 0:
        assert check(load(None, {**ready, **kl, **batch}), machine=CPU)
    else:
        assert re.search("algo.kl.horizon = 409 .* 2048: .*algo.kl.target ", refused({**ready, **kl, **batch}))


def test_a_critic_has_no_more_updates_than_samples(ready):
    said = refused(ready, algo__advantage__estimator="gae", critic__updates=5)
    assert re.search("critic.updates = 5 .* 4 ", said)
    assert check(load(None, {**ready, "algo.advantage.estimator": "gae", "critic.updates": 4}), machine=CPU)


def test_the_critic_of_an_own_estimator_has_no_more_updates_than_samples_either(ready, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from openrlhf_tir.algorithms.advantages import Estimator\n"
        "def plain(inputs): return [r * m for r, m in zip(inputs.rewards_G, inputs.trained_G)]\n"
        "with_critic = Estimator(plain, whiten=True, critic=True)\n"
    )
    updates = ready | {"critic.updates": 5}
    with pytest.raises(ConfigError) as e:
        check(load(None, {**updates, "algo.advantage.estimator": f"{tmp_path}/mine.py:with_critic"}), machine=CPU)
    assert [(problem.code, problem.setting) for problem in e.value.problems] == [("method", "critic.updates")]
    assert check(load(None, {**updates, "algo.advantage.estimator": f"{tmp_path}/mine.py:plain"}), machine=CPU)


def test_only_training_asks_for_a_group():
    one = {"rollout.n_samples_per_prompt": 1, "rollout.min_valid": 1}
    assert load(None, one).rollout.n_samples_per_prompt == 1
