"""Settings that were removed: a recipe or a flag that has one is refused, and is told what to do instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.config.catalog import known_keys
from openrlhf_tir.config.changes import changes, dumped
from openrlhf_tir.config.flags import unknown_flags
from openrlhf_tir.config.former_settings import DECIDED, FORMER_LIMITS, MOVED_IN_ENV
from openrlhf_tir.config.own_files import freeze
from openrlhf_tir.config.removed_settings import REMOVED, remedy
from openrlhf_tir.config.settings import load, load_former
from openrlhf_tir.config.toml_file import dump
from openrlhf_tir.errors import ConfigError
from tests.conftest import REPO

DEFAULTS = DECIDED | {f"filter.{option}": default for option, default in FORMER_LIMITS.items()}


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_setting_in_a_recipe_is_refused_with_its_remedy(name, tmp_path):
    section, _, key = name.rpartition(".")
    recipe = tmp_path / "old.toml"
    recipe.write_text(f"[{section}]\n{key} = 1\n")
    with pytest.raises(ConfigError) as refusal:
        load(str(recipe))
    assert name in str(refusal.value)
    assert REMOVED[name] in str(refusal.value)


def test_a_setting_removed_from_env_is_refused_for_a_named_environment_as_well():
    names = [name for name in REMOVED if name.startswith("env.")]
    for name in names:
        key = name.removeprefix("env.")
        with pytest.raises(ConfigError) as refusal:
            load(None, {f"envs.calc.{key}": 1})
        assert REMOVED[name] in str(refusal.value)


@pytest.mark.parametrize("name", [name for name in REMOVED if name.startswith(("reward.", "filter."))])
def test_a_setting_removed_from_reward_or_filter_is_refused_for_a_named_environment_as_well(name):
    with pytest.raises(ConfigError) as refusal:
        load(None, {f"envs.calc.{name}": 1})
    assert REMOVED[name] in str(refusal.value)


def test_a_removed_setting_in_an_old_checkpoint_is_no_change_of_a_run_that_resumes_from_it():
    cfg = Config()
    saved = dumped(cfg)
    moved = {"actor.policy_loss": None, "vllm.sync_delta": False, "reward.env_reduce": "sum"}
    defaults = DEFAULTS | {f"env.{field}": False for field in MOVED_IN_ENV} | moved
    for name in REMOVED:
        section, _, key = name.partition(".")
        saved[section][key] = defaults.get(name, 7.0)
    assert changes(saved, cfg) == ([], [])
    saved["train"]["never_was_a_setting"] = 7.0
    assert [change.field for change in changes(saved, cfg)[1]] == ["train.never_was_a_setting"]


@pytest.mark.parametrize(
    ("section", "before", "now"),
    [
        ("actor", {"eps_clip": 0.1, "eps_clip_low_high": None}, {"eps_clip_low_high": (0.1, 0.1)}),
        ("actor", {"eps_clip": 0.1, "eps_clip_low_high": [0.1, 0.3]}, {"eps_clip_low_high": (0.1, 0.3)}),
        ("train", {"env_mask": False, "env_mask_from": 0}, {"env_mask_from": "never"}),
        ("train", {"env_mask": True, "env_mask_from": 9}, {"env_mask_from": 9}),
        ("train", {"enable_ema": True, "ema_beta": 0.9}, {"ema_beta": 0.9}),
        ("actor", {"policy_loss": "a.py:loss"}, {"policy_loss_type": "a.py:loss"}),
        ("vllm", {"sync_delta": True}, {"sync_backend": "delta"}),
        ("reward", {"name": "env", "env_reduce": "last"}, {"name": "env", "options": {"reduce": "last"}}),
        (
            "reward",
            {"weights": {"env": 1.0}, "env_reduce": "max"},
            {"options": {"env": {"reduce": "max"}}, "weights": {"env": 1.0}},
        ),
        ("filter", {"max_length_gap": 500.0}, {"options": {"max_length_gap": 500.0}}),
        (
            "filter",
            {"names": ["truncated"], "max_truncated": 1.0},
            {"names": ["truncated"], "options": {"max_truncated": 1.0}},
        ),
        ("reward", {"name": "openrlhf_tir.miniatures.own:right"}, {"name": "miniatures.own:right"}),
        ("reward", {"weights": {"openrlhf_tir.miniatures.own:right": 1.0}}, {"weights": {"miniatures.own:right": 1.0}}),
        ("filter", {"names": ["openrlhf_tir.miniatures.own:keep"]}, {"names": ["miniatures.own:keep"]}),
        ("env", {"protocol": "openrlhf_tir.toy.guess:Digits"}, {"protocol": "miniatures.toy.guess:Digits"}),
    ],
)
def test_a_setting_that_moved_is_compared_where_it_is_now(section, before, now):
    saved = dumped(Config())
    saved[section] |= before
    assert changes(saved, Config.model_validate({section: now})) == ([], [])
    refused, reported = changes(saved, Config())
    assert [".".join(change.field.split(".")[:2]) for change in refused + reported] == [f"{section}.{n}" for n in now]


def test_a_policy_loss_of_ones_own_is_the_copy_that_an_earlier_version_made_of_it(tmp_path):
    (tmp_path / "mine.py").write_text("loss = 1")
    cfg = Config.model_validate(
        {"run_dir": tmp_path / "run", "actor": {"policy_loss_type": f"{tmp_path}/mine.py:loss"}}
    )
    saved = dumped(freeze(cfg))
    saved["actor"] |= {"policy_loss": saved["actor"]["policy_loss_type"], "policy_loss_type": "ppo"}
    assert changes(saved, cfg) == ([], [])


def test_a_run_of_an_earlier_version_with_filters_that_have_options_now_is_read(tmp_path):
    table = dumped(Config())
    table["filter"] |= {"names": ["length_gap"], "max_length_gap": 500.0, "max_truncated": 1.0}
    of_calc = {"names": ["truncated"], "max_truncated": 0.5}
    table["envs"] = {"calc": {"filter": of_calc, "reward": {"name": "env", "env_reduce": "last"}}}
    path = tmp_path / "config.toml"
    path.write_text(dump(table))
    former = load_former(path)
    assert former.filter.limit_of("length_gap") == 500.0
    calc = former.environments["calc"]
    assert (calc.filter.options["max_truncated"], calc.reward.env_reduce) == (0.5, "last")


def test_a_removed_setting_is_no_setting_and_its_remedy_names_only_settings_that_exist():
    known = set(known_keys())
    sections = {name.split(".")[0] for name in known}
    assert not known & set(REMOVED)
    for text in REMOVED.values():
        named = [name for name in re.findall(r"[a-z]+(?:\.[a-z_]+)+", text) if name.split(".")[0] in sections]
        assert set(named) <= known


def test_other_names_have_no_remedy():
    assert remedy("pipeline.depth") is None
    assert remedy("envs.calc") is None


def test_a_run_of_an_earlier_version_is_read_without_what_is_gone(tmp_path):
    """For its report and for comparisons: nothing is run by it."""
    table = dumped(Config())
    for name in REMOVED:
        section, _, key = name.partition(".")
        if (value := DEFAULTS.get(name, False)) is not None:  # a default of None is not written
            table[section][key] = value
    table["train"] |= {"env_mask": False, "seed": 7}
    table["envs"] = {"calc": {"max_retries": 9, "max_calls": 3}}
    path = tmp_path / "config.toml"
    path.write_text(dump(table))
    former = load_former(path)
    assert (former.train.seed, former.train.env_mask_from) == (7, "never")
    assert former.environments["calc"].env.max_calls == 3


@pytest.mark.parametrize("flag", ["--logger.tensorboard", "--no-logger.tensorboard", "--no-train.env_mask"])
def test_a_removed_setting_on_the_command_line_is_answered_with_its_remedy(flag):
    (mistake,) = unknown_flags([flag])
    assert mistake.code == "removed_setting"


ABOUT_FORMER_NAMES = ("removed_settings.py", "former_settings.py", "openrlhf_flags.py", "integrations/openrlhf_")
"""Modules about the names of earlier versions, and of OpenRLHF, which has some of them."""
PLACEHOLDER = "\0"
"""Stands for what an f-string inserts."""


def _texts(path: Path) -> Iterator[str]:
    """Yield every string, docstring and f-string of a module; the whole text of another file."""
    if path.suffix != ".py":
        yield path.read_text()
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else PLACEHOLDER for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _removed_names(text: str) -> set[str]:
    """Return the removed settings that a text names, also by a name that an f-string puts together."""
    found = set()
    for word in re.findall(rf"[\w.{PLACEHOLDER}]+", text):
        word = word.strip(".")
        field = word.rpartition(".")[2].replace(PLACEHOLDER, "").strip("_")
        if "." in word and field:
            pattern = re.compile(re.escape(word).replace(PLACEHOLDER, r"[\w.]*"))
            found |= {name for name in REMOVED if pattern.fullmatch(name)}
    return found


def test_a_name_that_an_f_string_puts_together_is_found():
    assert _removed_names(f"Raise env.{PLACEHOLDER}_timeout_s.") >= {"env.reset_timeout_s"}
    assert _removed_names(f"{PLACEHOLDER}.reset_timeout_s = {PLACEHOLDER}") == {"env.reset_timeout_s"}
    assert _removed_names(f"{PLACEHOLDER}.code_timeout_s, {PLACEHOLDER}.{PLACEHOLDER}, env.step_timeout_s") == set()


def test_no_message_docstring_or_recipe_names_a_removed_setting():
    files = [
        path
        for room in ("openrlhf_tir", "env_servers", "miniatures")
        for kind in ("*.py", "*.toml")
        for path in (REPO / room).rglob(kind)
        if not any(part in path.as_posix() for part in ABOUT_FORMER_NAMES)
    ]
    named = {
        path.relative_to(REPO).as_posix(): names
        for path in files
        if (names := set[str]().union(*map(_removed_names, _texts(path))))
    }
    assert named == {}
    assert len(files) > 400
