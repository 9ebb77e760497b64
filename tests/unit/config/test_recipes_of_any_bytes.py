"""Recipes that are no recipes: whatever stands in the file, one line says what, where and what to do."""

from __future__ import annotations

import re
import tomllib

import pytest

from openrlhf_tir.config.settings import MAX_EXTENDS, load, to_toml
from openrlhf_tir.errors import ConfigError


def refused(path, overrides=None) -> str:
    with pytest.raises(ConfigError) as e:
        load(str(path), overrides)
    return str(e.value)


@pytest.fixture
def recipe(tmp_path):
    def write(raw: bytes | str, name: str = "r.toml"):
        path = tmp_path / name
        path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
        return path

    return write


def test_a_byte_order_mark_is_read(recipe):
    assert load(str(recipe(b"\xef\xbb\xbf[actor]\nl2 = 0.5\n"))).actor.l2 == 0.5


@pytest.mark.parametrize(
    ("raw", "fact"),
    [
        (b"run_dir = 'caf\xe9'", r"0xe9 .*14\b.*UTF-8"),
        ("run_dir = 'x'".encode("utf-16"), r"0xff .*\b0\b.*UTF-8"),
        (b"[train]\nseed = " + b"9" * 5000, r"TOML.*4300"),
        (
            b"[train]\nseed = 0x" + b"f" * 5000,
            r"train\.seed =.*int.*64",
        ),
        (
            b"[reward.options]\nx = 0x" + b"f" * 5000,
            r"reward\.options =.*dict.*64",
        ),
        (b"run_dir = '\x00'", "TOML: Found invalid character"),
        (b'run_dir = "a\\u0000b"', r"run_dir = 'a\\x00b'.*NUL"),
        (b"x = " + b"[" * 5000, r"r\.toml.*TOML"),
        (b"run_dir = '~no-such-user-here/x'", "~no-such-user-here.*HOME"),
        (b"[actor]\nlearning_rate = inf", r"actor\.learning_rate = inf"),
        (b"[actor]\nl2 = nan", r"actor\.l2 = nan"),
        (b"[actor]\nl2 = 1e999", r"actor\.l2 = inf"),
        (b"extends = 3", r"'extends' .*r\.toml\b.* 3\."),
        (b"extends = 'r.toml'", r"/r\.toml .* r\.toml\b.*'extends'"),
        (b"extends = '~no-such-user-here/r.toml'", "~no-such-user-here.*HOME"),
        (b"extends = '" + b"n" * 300 + b"'", "nnnn.*File name too long"),
        (b"# " + b"x" * (2 << 20), r"2097154 .*TOML"),
    ],
)
def test_what_is_no_recipe_is_told_in_one_line(recipe, raw, fact):
    message = refused(recipe(raw))
    assert re.search(fact, message)
    assert len(message.splitlines()) == 1
    assert len(message) < 1000


def test_a_recipe_without_a_home_directory_says_so(recipe, monkeypatch):
    """HOME unset and a user that the machine does not know, as in many containers."""
    import pwd

    def unknown(*_):
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert "HOME" in refused(recipe("run_dir = '~/runs'"))
    assert "HOME" in refused("~/r.toml")
    assert "HOME" in refused("zerotir_7b", {"run_dir": "~/runs"})


def test_a_directory_or_an_unreadable_name_is_no_recipe(tmp_path):
    assert f"'{tmp_path}'" in refused(tmp_path)
    assert "NUL" in refused("a\0b")
    assert "udcff.toml' " in refused("\udcff.toml")
    assert "File name too long" in refused("n" * 5000)


def test_a_chain_of_extends_has_an_end(recipe):
    for i in range(MAX_EXTENDS + 2):
        recipe(f"extends = '{i + 1}.toml'", f"{i}.toml")
    recipe("", f"{MAX_EXTENDS + 2}.toml")
    assert f" {MAX_EXTENDS} " in refused(recipe("extends = '0.toml'"))


def test_all_mistakes_of_a_recipe_are_told_at_once_and_none_that_follows_from_another(recipe):
    path = recipe(
        "actor = 3\n[train]\nbatch_size = 'x'\nsed = 1\n[rollout]\nbatch_size = -3\nmin_valid = 99\n[pipeline]\nmode ="
        " 'sync'\nmax_staleness = 2\n[filter]\naccuracy_range = [0.9, 0.1]\n"
    )
    lines = refused(path).splitlines()
    expected = [
        "'train.sed'",
        "rollout.batch_size = -3",
        "train.batch_size = 'x'",
        "pipeline.max_staleness = 2",
        "rollout.min_valid = 99",
    ]
    expected += ["filter.accuracy_range = (0.9, 0.1)"]
    assert len(lines) == 1 + len(expected), lines
    assert any(re.search(r"\bactor .* 3\b", line) for line in lines)
    for fact in expected:
        assert any(fact in line for line in lines), fact


def test_a_bad_value_is_not_followed_by_complaints_about_the_default_that_replaced_it(recipe):
    """train.batch_size = 32 is 2 * 16 and not the default's 128 * 16: only the typing mistake is told."""
    (line,) = refused(recipe("[rollout]\nbatch_size = 'two'\n[train]\nbatch_size = 32\n")).splitlines()
    assert "rollout.batch_size = 'two'" in line
    (line,) = refused(recipe("[pipeline]\nmode = 'sync'\nmax_staleness = 2\ndepth = 1\n")).splitlines()
    assert "pipeline.max_staleness = 2" in line


@pytest.mark.parametrize("only_changes", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "[critic]\nvalue_clip = 'unset'",
        "[logger]\ntensorboard_dir = 'unset'",
        "[reward.options]\n'a b.c' = 1.5\nd = true\ne = 'x'",
        "[data]\napply_chat_template = true\n[data.chat_template_options]\nempty = {}",
        "[env.options]\nbudget_message = true\n[envs.calc]\noptions = {}",
    ],
)
def test_the_shown_config_keeps_what_is_unset_and_the_options(recipe, text, only_changes):
    cfg = load(str(recipe(text)))
    shown = to_toml(cfg, only_changes=only_changes)
    tomllib.loads(shown)
    assert load(str(recipe(shown, "shown.toml"))).model_dump(exclude={"run_dir"}) == cfg.model_dump(exclude={"run_dir"})
