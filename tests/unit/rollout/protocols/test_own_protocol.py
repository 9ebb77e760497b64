"""A turn protocol of one's own: options, what is refused before a run, and what fails a trajectory in one."""

from __future__ import annotations

import re

import pytest

from openrlhf_tir.config import Env
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.rollout import protocols
from openrlhf_tir.rollout.episode import Limits, run_episode

from ..test_episode import CharCodec, PlayedEngine, PlayedEnv

DIGITS = '''
from openrlhf_tir.rollout.protocols import Call, End, Reject


class Digits:
    """A digit is a call."""

    def __init__(self, *, max_calls, budget_message=False, mark="!"):
        self.left, self.mark = max_calls, mark

    @property
    def stops(self):
        return tuple("0123456789") if self.left else ()

    def advance(self, completion):
        if completion.stop_reason not in self.stops:
            return End()
        self.left -= 1
        return Call(completion.stop_reason)

    def insertion(self, observation):
        return f"{self.mark}{observation}{self.mark}"

    def too_long(self):
        return None

    def after_insertion(self):
        return ""
'''


def env_of(tmp_path, text=DIGITS, **settings) -> Env:
    (tmp_path / "mine.py").write_text(text)
    return Env(protocol=f"{tmp_path / 'mine.py'}:Digits", **settings)


async def played(cfg: Env, engine, *outputs):
    return await run_episode(
        [1],
        index=0,
        engine=engine,
        env=PlayedEnv(*outputs),
        codec=CharCodec(),
        protocol=protocols.make(cfg),
        limits=Limits(100),
        request_id="r",
    )


async def test_its_options_are_keyword_arguments(tmp_path):
    t = await played(env_of(tmp_path, options={"mark": "|"}), PlayedEngine(("try 5", "5"), ("bye", "<eos>")), "lower")
    assert t.text == "try 5|lower|bye" and [c.action for c in t.calls] == ["5"] and t.failed is None


@pytest.mark.parametrize(
    ("old", "new", "settings", "said"),
    [
        (
            "class Digits:",
            "class Digits:",
            {"options": {"marks": "|"}},
            r"mine\.py:5: Digits\(.*mark='!'\).*'marks'",
        ),
        ("def too_long", "def too_lon", {}, r"Digits .*too_long"),
        ("class Digits:", "class Digit:", {}, r"'Digits'.* Digit\b"),
        ("budget_message=False, ", "", {}, "budget_message"),
        ('mark="!"', 'mark: str = "!"', {"options": {"mark": 3}}, "mark = 3 .*str"),
        ("", "", {"options": {"max_calls": 3}}, r"env\.options .*env\.max_calls"),
    ],
)
def test_a_mistake_is_told_before_a_model_is_loaded(tmp_path, old, new, settings, said):
    with pytest.raises(ConfigError, match=said):
        protocols.check(env_of(tmp_path, DIGITS.replace(old, new), **settings))


@pytest.mark.parametrize(
    ("protocol", "options"),
    [("tagged", {"opening": 5}), ("retool", {"official": "no"}), ("searchr1", {"max_turn_tokens": "500"})],
)
def test_an_option_of_the_wrong_type_is_told_before_a_model_is_loaded(protocol, options):
    with pytest.raises(ConfigError, match=r"env\.options"):
        protocols.check(Env(protocol=protocol, options=options))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "return Call(completion.stop_reason)",
            "return completion.stop_reason",
            r"advance .*'5' \(str\)",
        ),
        ("self.left -= 1", "self.left -= self.none", r"mine\.py:18: AttributeError"),
        ('return f"{self.mark}{observation}{self.mark}"', "return 3", r"insertion .*3"),
        ('return tuple("0123456789") if self.left else ()', 'return "0"', r"stops .*'0'"),
        ('return tuple("0123456789") if self.left else ()', "return None", r"stops .*None"),
        ('return tuple("0123456789") if self.left else ()', "return (c for c in '0123456789')", r"stops .*generator"),
        ("return Call(completion.stop_reason)", "return Call(5)", r"action\b.*\badvance\b.*\bCall\b.* 5 \(int\)"),
        (
            "return Call(completion.stop_reason)",
            "return Reject('5', 'digit', None)",
            r"message\b.*\badvance\b.*\bReject\b.*None",
        ),
    ],
)
async def test_what_it_does_wrong_fails_the_trajectory_with_file_and_line(tmp_path, old, new, said):
    assert old in DIGITS
    t = await played(
        env_of(tmp_path, DIGITS.replace(old, new)), PlayedEngine(("try 5", "5"), ("bye", "<eos>")), "lower"
    )
    assert t.failed == "protocol_error" and t.reward is None
    assert re.search(said, t.why)


@pytest.mark.parametrize(
    ("name", "today"),
    [
        ("openrlhf_tir.toy.guess:Digits", "miniatures.toy.guess"),
        ("openrlhf_tir.miniatures.toy.guess:Digits", "miniatures.toy.guess"),
        ("openrlhf_tir.episodes.turns.messages:Messages", "openrlhf_tir.rollout.protocols.messages"),
    ],
)
def test_a_protocol_that_an_older_run_names_by_its_module_is_found_where_it_is_today(name, today):
    assert protocols.load(name).__module__ == today


def test_a_file_that_imports_from_where_our_modules_were_is_refused_before_the_run(tmp_path):
    cfg = env_of(tmp_path, DIGITS.replace("openrlhf_tir.rollout.protocols", "openrlhf_tir.where_it_was.turns"))
    with pytest.raises(ConfigError) as caught:
        protocols.load(cfg.protocol)
    assert caught.value.code == "user_code"
    assert "docs/migration.md" in str(caught.value)
