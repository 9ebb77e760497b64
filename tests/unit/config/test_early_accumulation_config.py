"""What cannot begin before its batch is whole is refused at the start."""

from __future__ import annotations

import pytest

from openrlhf_tir.cli.checks.names import check_names
from openrlhf_tir.config import Config
from openrlhf_tir.config.problems import Problems
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError


def config(**overrides) -> Config:
    flags = {"algo__advantage__estimator": "group_norm", "pipeline__early_accumulation": "on"} | overrides
    return load(None, {"actor.num_gpus_per_node": 1, **{k.replace("__", "."): v for k, v in flags.items()}})


def test_it_is_off_unless_it_is_asked_for():
    assert Config().pipeline.early_accumulation == "off"
    for estimator in ("group_norm", "dr_grpo", "rloo", "opo"):
        assert config(algo__advantage__estimator=estimator).pipeline.early_accumulation == "on"


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        ({"algo__advantage__estimator": "reinforce"}, "a_group_has_its_advantages"),
        ({"algo__advantage__estimator": "reinforce_baseline"}, "a_group_has_its_advantages"),
        ({"algo__advantage__estimator": "gae"}, "a_group_has_its_advantages"),
        ({"algo__advantage__estimator": "flash_reinforce"}, "a_group_has_its_advantages"),
        *(
            (overrides, "a_part_of_a_batch_can_be_trained")
            for overrides in (
                {"pipeline__mode": "sync"},
                {"pipeline__mode": "one_step"},
                {"pipeline__mode": "pipeline_drain"},
                {"train__batch_size": 1024, "pipeline__max_staleness": 3, "train__max_steps": 10},
                {"algo__kl__init_coef": 0.1},
                {"actor__optim": "muon"},
                {"ds__zero_stage": 2},
                {"ds__param_dtype": "fp16"},
                {"actor__loss_agg_mode": "seq-mean-token-mean", "actor__entropy_coef": 0.01},
                {"actor__policy_loss_type": "gspo", "algo__kl__init_coef": 0.1, "algo__kl__use_loss": True},
                {"actor__loss_agg_mode": "seq-mean-token-sum-norm", "actor__aux_loss_coef": 0.01},
            )
        ),
    ],
)
def test_what_needs_the_whole_batch_is_refused(overrides, code):
    with pytest.raises(ConfigError) as e:
        config(**overrides)
    assert (code, "pipeline.early_accumulation") in {(problem.code, problem.setting) for problem in e.value.problems}


@pytest.mark.parametrize(
    "overrides",
    [
        {"actor__entropy_coef": 0.01},
        {"actor__loss_agg_mode": "seq-mean-token-mean", "algo__kl__init_coef": 0.1, "algo__kl__use_loss": True},
        {"actor__loss_agg_mode": "seq-mean-token-sum-norm", "actor__entropy_coef": 0.01},
        {"actor__policy_loss_type": "gspo"},
        {"actor__aux_loss_coef": 0.01},
    ],
)
def test_terms_that_are_means_over_the_same_number_are_not_refused(overrides):
    assert config(**overrides).pipeline.early_accumulation == "on"


@pytest.mark.parametrize(("more", "refused"), [("", True), (", by_group=True", False)])
def test_an_estimator_of_ones_own_must_say_that_a_group_is_enough(tmp_path, more, refused):
    (tmp_path / "own.py").write_text(
        "from openrlhf_tir.algorithms.advantages import Estimator\n"
        f"mine = Estimator(lambda inputs: inputs.trained_G, whiten=False{more})\n"
    )
    problems = Problems()
    check_names(config(algo__advantage__estimator=f"{tmp_path / 'own.py'}:mine"), problems)
    assert bool(problems) is refused
    if refused:
        with pytest.raises(ConfigError) as e:
            problems.raise_any()
        assert (e.value.code, e.value.setting) == ("a_group_has_its_advantages", "pipeline.early_accumulation")
