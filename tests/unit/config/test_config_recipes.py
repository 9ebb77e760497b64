"""Recipes and overrides: what becomes of a TOML file, and what each mistake says."""

from __future__ import annotations

import re

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.config.settings import RECIPES, load, nest, to_toml
from openrlhf_tir.config.toml_file import dump
from openrlhf_tir.errors import ConfigError


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def refused(recipe=None, **overrides) -> str:
    with pytest.raises(ConfigError) as e:
        load(recipe, {k.replace("__", "."): v for k, v in overrides.items()})
    return str(e.value)


def test_no_recipe_gives_the_defaults():
    assert load() == Config()


def test_a_recipe_holds_only_differences(tmp_path):
    cfg = load(write(tmp_path, "r.toml", "[actor]\nlearning_rate = 3e-4\n[algo.advantage]\nestimator = 'rloo'\n"))
    assert (cfg.actor.learning_rate, cfg.algo.advantage.estimator) == (3e-4, "rloo")
    assert cfg.actor.l2 == Config().actor.l2


def test_extends_is_merged_deeply_and_the_child_wins(tmp_path):
    write(tmp_path, "base.toml", "[actor]\nlearning_rate = 1e-5\nl2 = 0.1\n")
    cfg = load(write(tmp_path, "child.toml", "extends = 'base.toml'\n[actor]\nl2 = 0.2\n"))
    assert (cfg.actor.learning_rate, cfg.actor.l2) == (1e-5, 0.2)


def test_a_recipe_that_extends_itself_is_refused(tmp_path):
    write(tmp_path, "a.toml", "extends = 'b.toml'\n")
    assert "b.toml -> a.toml" in refused(write(tmp_path, "b.toml", "extends = 'a.toml'\n"))


def test_overrides_win_over_the_recipe(tmp_path):
    assert load(write(tmp_path, "r.toml", "[actor]\nl2 = 0.1\n"), {"actor.l2": "0.3"}).actor.l2 == 0.3


@pytest.mark.parametrize(
    ("base", "over", "options"),
    [
        ({"name": "zerotir", "options": {"a": 1}}, {"name": "zerotir", "options": {"b": 2}}, {"a": 1, "b": 2}),
        ({"options": {"a": 1}}, {"name": "zerotir"}, {"a": 1}),
        ({"name": "zerotir", "options": {"a": 1}}, {"name": "math", "options": {"b": 2}}, {"b": 2}),
        ({"name": "zerotir", "options": {"a": 1}}, {"weights": {"env": 1.0}}, {}),
        ({"weights": {"env": 1.0}, "options": {"env": {"reduce": "max"}}}, {"name": "math"}, {}),
        (
            {"weights": {"env": 1.0}, "options": {"env": {"reduce": "max"}}},
            {"weights": {"math": 1.0}},
            {"env": {"reduce": "max"}},
        ),
    ],
)
@pytest.mark.parametrize("section", ["reward", "envs.calc.reward"])
def test_options_of_a_reward_stay_with_it_and_go_with_it(tmp_path, section, base, over, options):
    write(tmp_path, "base.toml", dump(nest({section: base})))
    child = write(tmp_path, "child.toml", f'extends = "base.toml"\n{dump(nest({section: over}))}')
    (environment,) = load(child).environments.values()
    reward = environment.reward
    assert (reward.options, bool(reward.weights)) == (options, "weights" in over)


def test_options_of_a_group_reward_and_of_a_protocol_go_with_them(tmp_path):
    write(tmp_path, "base.toml", '[reward]\ngroup = "otc"\ngroup_options = { c = 4 }\n')
    write(
        tmp_path, "mid.toml", 'extends = "base.toml"\n[env]\nprotocol = "searchr1"\noptions = { max_turn_tokens = 5 }'
    )
    child = write(
        tmp_path, "child.toml", 'extends = "mid.toml"\n[env]\nprotocol = "tagged"\n[reward]\ngroup = "unset"\n'
    )
    cfg = load(child)
    assert (cfg.env.protocol, cfg.env.options, cfg.reward.group, cfg.reward.group_options) == ("tagged", {}, None, {})
    assert load(child, {"env.options": {"after": "x"}}).env.options == {"after": "x"}


@pytest.mark.parametrize(
    "over",
    ['[env]\nprotocol = "tagged"\n', '[envs.calc]\nprotocol = "tagged"\n'],
    ids=["the common protocol", "the environment's own"],
)
def test_options_of_an_environment_go_with_the_common_protocol_that_it_takes(tmp_path, over):
    write(
        tmp_path, "base.toml", '[env]\nprotocol = "searchr1"\n[envs.calc]\noptions = { max_turn_tokens = 5 }\n[envs.b]'
    )
    calc = load(write(tmp_path, "child.toml", f'extends = "base.toml"\n{over}')).environments["calc"]
    assert (calc.env.protocol, calc.env.options) == ("tagged", {})
    kept = load(write(tmp_path, "same.toml", f'extends = "base.toml"\n{over.replace("tagged", "searchr1")}'))
    assert kept.environments["calc"].env.options == {"max_turn_tokens": 5}


@pytest.mark.parametrize(
    ("base", "over", "options"),
    [
        ({"name": "zerotir", "options": {"a": 1}}, {"weights": "unset"}, {"a": 1}),
        ({"weights": {"env": 1.0}, "options": {"env": {"reduce": "max"}}}, {"weights": "unset"}, {}),
        (
            {"weights": {"env": 1.0}, "options": {"env": {"reduce": "max"}}},
            {"weights": "unset", "name": "math"},
            {},
        ),
        ({"name": "zerotir", "options": {"a": 1}}, {"name": "unset"}, {}),
    ],
)
def test_a_reward_of_an_environment_that_is_unset_takes_its_options_along(tmp_path, base, over, options):
    write(tmp_path, "base.toml", dump(nest({"envs.calc.reward": base})))
    child = write(tmp_path, "child.toml", f'extends = "base.toml"\n{dump(nest({"envs.calc.reward": over}))}')
    reward = load(child).environments["calc"].reward
    assert (reward.options, reward.weights) == (options, {})


def test_an_unknown_recipe_key_names_the_nearest_and_the_file(tmp_path):
    message = refused(write(tmp_path, "r.toml", "[actor]\nlearnin_rate = 1.0\n"))
    assert "actor.learnin_rate" in message
    assert "'actor.learning_rate'" in message
    assert "r.toml" in message


def test_a_key_in_the_wrong_section_is_found_elsewhere(tmp_path):
    assert "rollout.n_samples_per_prompt" in refused(write(tmp_path, "r.toml", "[vllm]\nn_samples_per_prompt = 4\n"))


def test_a_mode_chosen_by_a_flag_leaves_the_recipes_staleness_and_depth_behind_and_its_own_mode_keeps_them(tmp_path):
    recipe = write(
        tmp_path,
        "r.toml",
        "[pipeline]\nmode = 'pipeline'\nmax_staleness = 2\npush_every = 2\ndepth = 200\n",
    )
    own, sync, drain = (
        load(recipe, {"pipeline.mode": mode}).pipeline for mode in ("pipeline", "sync", "pipeline_drain")
    )
    assert (own.requested_staleness, own.depth, own.push_every) == (2, 200, 2)
    assert (sync.requested_staleness, sync.depth, sync.push_every) == (0, None, 1)
    assert drain.requested_staleness == 1
    assert (
        load(recipe, {"pipeline.mode": "pipeline_drain", "pipeline.max_staleness": 3}).pipeline.requested_staleness == 3
    )
    for shipped in RECIPES.glob("*.toml"):
        assert load(shipped.stem, {"pipeline.mode": "sync"}).pipeline.requested_staleness == 0


def test_a_section_written_as_a_value_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"actor .*r\.toml .* 3\b.*\[actor\]") as refusal:
        load(write(tmp_path, "r.toml", "actor = 3\n"))
    assert refusal.value.code == "recipe"


def test_bad_toml_names_the_file_and_line(tmp_path):
    message = refused(write(tmp_path, "r.toml", "[actor\n"))
    assert "r.toml" in message
    assert "line 1" in message


def test_an_unknown_recipe_lists_the_known_ones():
    message = refused("quickstart_gpu")
    assert "quickstart_cpu" in message
    assert "zerotir_7b" in message


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"pipeline__max_staleness": -1}, r"pipeline\.max_staleness = -1"),
        (
            {"pipeline__mode": "sync", "pipeline__max_staleness": 3},
            r"pipeline\.max_staleness = 3 .*pipeline\.mode = 'sync'",
        ),
        (
            {"pipeline__mode": "one_step", "pipeline__kv_after_push": "keep"},
            r"pipeline\.kv_after_push = 'keep' .*pipeline\.mode = 'one_step'",
        ),
        ({"pipeline__mode": "pipeline", "pipeline__max_staleness": 0}, "max_staleness >= 1"),
        (
            {"rollout__batch_size": 3, "rollout__n_samples_per_prompt": 3, "actor__num_gpus_per_node": 2},
            r"3 .*\* 3 .*= 9 .* 2 .*rollout\.batch_size.*actor\.num_gpus_per_node",
        ),
        ({"train__batch_size": 17}, r"train\.batch_size = 17"),
        ({"actor__learning_rate": "fast"}, r"actor\.learning_rate = 'fast'"),
        ({"actor__eps_clip_low_high": ["0.2"]}, r"actor\.eps_clip_low_high"),
        ({"ds__param_dtype": "fp8"}, "'fp16'"),
        ({"filter__accuracy_range": (0.8, 0.2)}, r"filter\.accuracy_range = \(0\.8, 0\.2\)"),
        ({"pipeline__depth": 4}, r"pipeline\.depth = 4 .*rollout\.batch_size = 128\b"),
    ],
)
def test_values_that_cannot_work_are_refused_in_one_line(overrides, expected):
    message = refused(**overrides)
    assert re.search(expected, message)
    assert "\n" not in message


def test_two_mistakes_are_told_together():
    assert len(refused(actor__l2=-1, actor__max_norm=0).splitlines()) == 2


def test_an_unknown_override_is_refused():
    assert "'train.seed'" in refused(train__sed=3)


def test_the_shown_config_is_a_recipe_that_gives_the_same_config(tmp_path):
    cfg = load("zerotir_7b", {"data.input_template": 'quote " backslash \\ newline \n{} \x7f', "data.label_key": "a.b"})
    assert load(write(tmp_path, "shown.toml", to_toml(cfg))) == cfg
    assert load(write(tmp_path, "changes.toml", to_toml(cfg, only_changes=True))) == cfg


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda p: p.stem)
def test_every_shipped_recipe_loads(path):
    assert load(path.stem).run_dir.name == path.stem.removesuffix("_cpu")


def test_the_ppo_recipe_makes_twelve_critic_updates_beside_one_of_the_policy():
    cfg = load("zerotir_ppo_7b")
    assert (cfg.algo.advantage.estimator, cfg.algo.advantage.gamma, cfg.algo.advantage.lambd) == ("gae", 1.0, 1.0)
    assert (cfg.critic.updates, cfg.minibatches, cfg.env.max_calls) == (12, 1, 20)


def test_the_zerotir_recipe_has_the_papers_values():
    cfg = load("zerotir_7b")
    assert (
        cfg.rollout.batch_size,
        cfg.rollout.n_samples_per_prompt,
        cfg.actor.learning_rate,
        cfg.actor.eps_clip_low_high,
    ) == (
        128,
        16,
        1e-6,
        (0.2, 0.28),
    )
    assert (cfg.rollout.temperature, cfg.rollout.top_p, cfg.algo.kl.init_coef, cfg.algo.advantage.estimator) == (
        1.0,
        1.0,
        0.0,
        "reinforce_baseline",
    )
    assert (
        cfg.pipeline.requested_staleness,
        cfg.pipeline.drain,
        (cfg.pipeline.requested_staleness + 1) * cfg.rollout.batch_size,
    ) == (1, True, 256)
