"""What may differ between a checkpoint and the run that resumes from it: declared at each setting, and never silent."""

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.config.catalog import settings_with
from openrlhf_tir.config.changes import changes, dumped, policy_of, refusal


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("train.seed", "refused"),
        ("envs.calc.share", "refused"),
        ("actor.optim", "refused"),
        ("timeouts.push_s", "allowed"),  # by its section
        ("logger.wandb.project", "allowed"),  # by its section
        ("envs.calc.url", "allowed"),
        ("envs.calc.max_calls", "reported"),
        ("actor.learning_rate", "reported"),
        ("reward.weights.env", "reported"),  # an entry of a table
        ("rollout.former", "reported"),  # of a setting that is gone
    ],
)
def test_a_setting_has_its_own_policy_or_that_of_its_section(name, policy):
    assert policy_of(name).policy == policy


def test_every_refusal_has_a_reason_and_only_refusals_are_told_it():
    for setting in settings_with(["calc"]):
        assert setting.resume.reason or setting.resume.policy != "refused", setting.name
    assert refusal("train.seed") == policy_of("train.seed").reason != ""
    assert refusal("pipeline.max_staleness") is None, "it is compared by what it amounts to"


def test_a_resume_refuses_what_its_files_and_its_order_of_prompts_depend_on():
    refused = {setting.name for setting in settings_with(["calc"]) if setting.resume.policy == "refused"}
    assert refused == {
        "actor.optim",
        "critic.optim",
        "data.curriculum",
        "data.prompt_probs",
        "data.shuffle",
        "ds.lora.alpha",
        "ds.lora.rank",
        "ds.lora.target_modules",
        "ds.param_dtype",
        "ds.value_head_prefix",
        "ds.zero_stage",
        "envs.calc.share",
        "rollout.batch_size",
        "train.colocate_all",
        "train.env_mask_from",
        "train.seed",
    }


def test_each_policy_shows_on_one_field():
    before = dumped(Config())
    now = Config(
        train={"seed": 1, "max_steps": 9}, logger={"tensorboard_dir": None}, reward={"options": {"bonus": 1.0}}
    )
    refused, said = changes(before, now)
    assert [str(c) for c in refused] == ["train.seed 42 -> 1"]
    assert [str(c) for c in said] == ["reward.options {} -> {'bonus': 1.0}", "train.max_steps 400 -> 9"]


def test_what_vllm_is_given_besides_is_said_as_one_field_since_it_may_change_what_samples():
    _, (said,) = changes(dumped(Config()), Config(vllm={"engine_args": {"quantization": "fp8"}}))
    assert str(said) == "vllm.engine_args {} -> {'quantization': 'fp8'}"


def test_a_field_that_the_checkpoint_did_not_know_counts_as_its_default():
    before = dumped(Config())
    del before["rollout"]["min_valid"], before["rollout"]["top_p"]
    assert changes(before, Config()) == ([], [])
    _, (said,) = changes(before, Config(rollout={"min_valid": 3}))
    assert str(said) == "rollout.min_valid 2 -> 3"


def test_a_field_or_an_entry_that_is_gone_is_said():
    before = dumped(Config())
    before["rollout"]["former"] = 3
    assert [str(c) for c in changes(before, Config())[1]] == ["rollout.former 3 -> unset"]


def test_a_removed_setting_is_said_if_it_decided_what_was_sampled_or_kept():
    before = dumped(Config(envs={"calc": {"server": "math"}}))
    before["rollout"] |= {"per_request_seeds": False, "max_queue": 7}
    before["env"] |= {"stateful": False, "max_retries": 9}
    before["envs"]["calc"] |= {"stateful": None, "filter": {"zero_variance": None}}
    before["filter"] |= {"zero_variance": True, "max_verifier_failures": 0.4}
    now = Config(envs={"calc": {"server": "math"}})
    assert changes(before, now) == ([], [])
    before["rollout"]["per_request_seeds"] = before["env"]["stateful"] = True
    before["envs"]["calc"] |= {"stateful": True, "filter": {"zero_variance": False}}
    before["filter"] |= {"zero_variance": False, "max_verifier_failures": 0.1}
    refused, said = changes(before, now)
    assert refused == [] and {str(change) for change in said} == {
        "rollout.per_request_seeds True -> unset",
        "env.server_options {'stateful': True} -> {}",
        "envs.calc.server_options {'stateful': True} -> unset",
        "envs.calc.filter.zero_variance False -> unset",
        "filter.zero_variance False -> unset",
        "filter.max_verifier_failures 0.1 -> unset",
    }


def test_a_setting_that_moved_into_a_table_is_compared_with_what_the_table_has_now():
    before = dumped(Config(envs={"py": {"server": "python_tir", "server_options": {"warm": False}}}))
    before["env"]["budget_message"] = before["envs"]["py"]["stateful"] = True
    py = {"server": "python_tir", "server_options": {"warm": False, "stateful": True}}
    assert changes(before, Config(env={"options": {"budget_message": True}}, envs={"py": py})) == ([], [])
    py["server_options"].pop("stateful")
    [change] = changes(before, Config(env={"options": {"budget_message": True}}, envs={"py": py}))[1]
    assert (change.field, change.before["stateful"]) == ("envs.py.server_options", True)


def test_a_secret_is_not_in_a_checkpoint():
    assert "hidden" not in str(dumped(Config(logger={"wandb": {"key": "hidden"}})))
