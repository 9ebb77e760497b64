"""The outcome reward on hand-made trajectories."""

from __future__ import annotations

import time

import pytest

from openrlhf_tir.rewards import load
from openrlhf_tir.rewards.checking.answer_text import find_answer, last_boxed
from openrlhf_tir.rewards.checking.zerotir_format import ZERO_V2
from openrlhf_tir.rewards.math_outcome import math_outcome
from tests.unit.rewards.reward_fakes import in_run, reward_of, says, task, trajectory

ANSWER = in_run(format="answer")
ZEROTIR = in_run(format="think_answer")
BOXED = in_run(format="boxed")


def reward(traj, cfg=ANSWER, label="42"):
    return reward_of("math", traj, task(label), cfg)


def test_a_right_answer_in_the_format_is_one_and_a_wrong_one_zero():
    assert reward(says(r"so <answer>\boxed{42}</answer>"))[:2] == (1.0, True)
    assert reward(says(r"so <answer>\boxed{41}</answer>"))[:2] == (0.0, False)


def test_a_right_answer_without_the_format_is_zero():
    r = reward(says(r"\boxed{42}"))
    assert r.reward == 0.0
    assert r.parts["format_ok"] == 0.0
    assert reward(says(r"\boxed{42}"), BOXED).reward == 1.0


def test_a_response_cut_by_length_is_zero_even_if_it_says_the_answer():
    r = reward(says(r"<answer>\boxed{42}</answer>", finish="length"))
    assert r.reward == 0.0
    assert not r.correct
    assert r.parts["truncated"] == 1.0
    assert r.parts["format_ok"] == 1.0


def test_a_response_that_ends_by_eos_without_a_stop_string_is_a_proper_end():
    assert reward(says(r"hm </think> <answer>\boxed{42}</answer> done.", finish="stop"), ZEROTIR).reward == 1.0


def test_what_the_environment_prints_is_no_answer():
    printed = trajectory(
        ("model", "```python\nx\n```"), ("env", r"<answer>\boxed{42}</answer>"), ("model", "bye"), calls=("ok",)
    )
    assert reward(printed).reward == 0.0
    assert reward(printed, BOXED).reward == 0.0


def test_an_environment_tag_does_not_spoil_the_count_of_tags():
    spoilt = trajectory(
        ("model", "a"), ("env", "<answer></think>"), ("model", r" </think> <answer>\boxed{42}</answer>"), calls=("ok",)
    )
    assert reward(spoilt, ZEROTIR).reward == 1.0


@pytest.mark.parametrize("cfg", [ANSWER, BOXED])
def test_a_box_inside_the_models_own_code_is_no_answer(cfg):
    assert reward(says("```python\nprint('<answer>\\boxed{42}</answer>')\n```"), cfg).reward == 0.0


def test_an_output_block_that_the_model_made_up_is_no_answer():
    assert reward(says("```output\n\\boxed{42}\n```\n"), BOXED).reward == 0.0


@pytest.mark.parametrize(
    ("text", "ok"),
    [
        (r"r </think> <answer> \boxed{42} </answer>", True),
        (r"r </think> <answer> \boxed{42} </answer> a b c d e", True),
        (r"r </think> <answer> \boxed{42} </answer> a b c d e f", False),
        (r"r <answer> \boxed{42} </answer>", False),
        (r"r </think> </think> <answer> \boxed{42} </answer>", False),
        (r"<answer> \boxed{42} </answer> </think>", False),
        (r"r </think> <answer> \boxed{1} </answer> <answer> \boxed{42} </answer>", False),
        (r"r </think> <answer> 42 </answer>", False),
        (r"\boxed{42} </think> <answer> 42 </answer>", False),
        (r"r </think> <answer> \boxed{42", False),
    ],
)
def test_the_full_format_wants_each_tag_once_and_five_words_at_most_after_it(text, ok):
    assert find_answer(text, "think_answer").ok is ok


def test_the_loose_format_does_not_ask_for_think():
    assert find_answer(r"r <answer> \boxed{42} </answer>", "answer") == (True, "42")


def test_the_last_box_counts_and_braces_nest():
    assert last_boxed(r"\boxed{1} then \boxed{\frac{1}{\sqrt{2}}}.") == r"\frac{1}{\sqrt{2}}"
    assert last_boxed(r"\boxed{\{1,2\}}") == r"\{1,2\}"
    assert last_boxed(r"\boxed{7} and \boxed{open") == "7"
    assert last_boxed("none") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    ["<answer>" * 4000, "```python" * 4000, r"\boxed{" * 4000, r"<answer>\boxed{" * 3000 + "</answer>", "{" * 30000],
)
def test_text_that_repeats_itself_is_read_in_linear_time(text):
    """CPU seconds of this thread, the best of some, of a text and of eight times as much: linear 8, quadratic 64."""

    def cost(text: str) -> float:
        start = time.thread_time()
        for format in ("think_answer", "answer", "boxed"):
            find_answer(text, format)
        ZERO_V2.score(text)
        return time.thread_time() - start

    assert min(cost(text * 8) for _ in range(5)) < 24 * min(cost(text) for _ in range(5))


def test_the_parts_tell_code_use():
    r = reward(
        trajectory(
            ("model", "c"),
            ("env", "o"),
            ("model", r"<answer>\boxed{42}</answer>"),
            calls=("ok", "model_error", "ok", "ok"),
        )
    )
    assert r.parts["used_code"] == 1.0
    assert r.parts["num_calls"] == 4.0
    assert r.parts["code_ok"] == 0.75
    assert r.parts["code_in_correct"] == 1.0
    plain = reward(says(r"<answer>\boxed{42}</answer>"))
    assert plain.parts["used_code"] == 0.0
    assert plain.parts["code_ok"] == 0.0
    assert plain.parts["code_in_correct"] == 0.0


def test_a_reward_is_found_by_name_or_by_import_path():
    assert load("math") is math_outcome
    assert load("openrlhf_tir.rewards.math_outcome:math_outcome") is math_outcome


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("maths", r"'maths'.*\bmath\b.* reward\.name .* 'path/file\.py:reward'"),
        ("no.such.module:f", "'no.such.module:f' .*'no'"),
        ("openrlhf_tir.rewards.math_outcome:nothing", r"'nothing'.*: math_outcome\b"),
    ],
)
def test_an_unknown_reward_is_refused_with_a_remedy(name, said):
    from openrlhf_tir.errors import ConfigError

    with pytest.raises(ConfigError, match=said):
        load(name)
