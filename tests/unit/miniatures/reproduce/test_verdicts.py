"""The verdict of every miniature, both ways, on figures made by hand."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from miniatures.reproduce import methods
from miniatures.reproduce.miniature import judged
from miniatures.toy import lessons
from openrlhf_tir.errors import ReproductionFailed

SEEN: dict[str, dict[str, dict[str, float]]] = {
    "zerotir": {
        "rl": {
            "accuracy_before": 0.31,
            "accuracy": 0.95,
            "greedy_accuracy": 0.99,
            "code_ratio_before": 0.29,
            "code_ratio": 0.98,
            "together": 0.99,
        },
        "no_tool": {"accuracy": 0.02},
    },
    "zero_tir_rl": {"on": {"accuracy": 0.95}, "off_then_on": {"accuracy": 0.93}, "off": {"accuracy": 0.4}},
    "interaction_scaling": {
        "rl": {},
        "sweep": {"accuracy_0": 0.05, "accuracy_2": 0.47, "accuracy_4": 0.91, "accuracy_20": 0.92},
    },
    "torl": {
        "rl": {
            "accuracy_before": 0.3,
            "accuracy": 0.92,
            "code_ratio_before": 0.3,
            "code_ratio": 0.97,
            "pass_correct": 0.99,
            "pass_incorrect": 0.6,
        },
        "no_tool": {"accuracy": 0.05},
    },
    "search_r1": {
        "rl": {"accuracy_before": 0.3, "accuracy": 0.95, "calls": 1.6},
        "otc": {"accuracy": 0.94, "calls": 1.0},
    },
    "artist_functions": {"rl": {"accuracy_before": 0.2, "accuracy": 0.85}},
    "retool": {"base_rl": {"accuracy": 0.12}, "sft": {"accuracy": 0.37}, "sft_rl": {"accuracy": 0.93}},
    "artist": {
        "composite": {"format": 0.98, "format_halfway": 0.85, "pass": 0.97, "pass_halfway": 0.92},
        "answer_only": {"format": 0.5, "format_halfway": 0.45, "pass": 0.97, "pass_halfway": 0.9},
    },
    "toolrl": {
        "fine": {"accuracy_before": 0.1, "accuracy": 0.9, "updates_to_half": 8},
        "coarse": {"accuracy": 0.7, "updates_to_half": 20, "reached_half": 1.0},
    },
    "tool_n1": {
        "binary": {"accuracy_before": 0.2, "accuracy": 0.9},
        "partial": {"accuracy": 0.8},
        "sft": {"accuracy": 0.95},
    },
    "otc": {
        "torl": {"calls": 1.6, "accuracy": 0.95, "productivity": 0.6},
        "ppo": {"calls": 1.6, "accuracy": 0.95, "productivity": 0.6},
        "otc_ppo": {"calls": 1.1, "accuracy": 0.94, "productivity": 0.86},
        "otc_grpo": {"calls": 1.0, "accuracy": 0.95, "productivity": 0.95},
    },
    "curriculum": {
        "uniform": {"accuracy": 0.95, "rolled_per_trained": 3.2},
        "difficulty": {"accuracy": 0.93, "rolled_per_trained": 2.0},
    },
    "skyrl": {"rl": {"accuracy_before": 0.24, "accuracy": 0.91, "viewed_before": 0.26, "viewed": 0.95}},
}
MISSED = [
    ("zerotir", "rl", "accuracy", 0.89, 0, 0.89, 0.9),
    ("zerotir", "rl", "greedy_accuracy", 0.9, 1, 0.9, 0.97),
    ("zerotir", "rl", "code_ratio", 0.5, 3, 0.21, 0.4),
    ("zerotir", "rl", "together", 0.2, 4, 0.2, 0.9),
    ("zerotir", "no_tool", "accuracy", 0.6, 5, 0.35, 0.4),
    ("torl", "no_tool", "accuracy", 0.6, 4, 0.32, 0.4),
    ("toolrl", "fine", "accuracy_before", 0.6, 1, 0.3, 0.4),
    ("zero_tir_rl", "off_then_on", "accuracy", 0.91, 1, -0.04, -0.03),
    ("zero_tir_rl", "on", "accuracy", 0.6, 0, 0.6, 0.85),
    ("interaction_scaling", "sweep", "accuracy_0", 0.2, 0, 0.2, 0.1),
    ("interaction_scaling", "sweep", "accuracy_2", 0.75, 1, 0.25, 0.12),
    ("interaction_scaling", "sweep", "accuracy_4", 0.8, 2, 0.8, 0.88),
    ("interaction_scaling", "sweep", "accuracy_20", 0.95, 3, 0.04, 0.02),
    ("torl", "rl", "pass_incorrect", 0.99, 3, 0.0, 0.05),
    ("torl", "rl", "accuracy", 0.6, 0, 0.6, 0.9),
    ("search_r1", "rl", "accuracy", 0.8, 0, 0.8, 0.9),
    ("search_r1", "rl", "accuracy_before", 0.6, 1, 0.35, 0.4),
    ("search_r1", "otc", "calls", 1.5, 2, 0.938, 0.7),
    ("search_r1", "otc", "accuracy", 0.9, 3, -0.05, -0.03),
    ("artist_functions", "rl", "accuracy", 0.7, 1, 0.7, 0.8),
    ("artist_functions", "rl", "accuracy_before", 0.5, 0, 0.5, 0.3),
    ("retool", "base_rl", "accuracy", 0.4, 0, 0.4, 0.2),
    ("retool", "sft", "accuracy", 0.8, 1, 0.8, 0.45),
    ("retool", "sft_rl", "accuracy", 0.5, 2, 0.5, 0.9),
    ("artist", "composite", "format", 0.9, 0, 0.9, 0.95),
    ("artist", "answer_only", "format_halfway", 0.8, 2, 0.05, 0.1),
    ("artist", "answer_only", "pass_halfway", 0.95, 3, -0.03, 0),
    ("artist", "composite", "pass", 0.8, 1, 0.8, 0.95),
    ("toolrl", "coarse", "updates_to_half", 12, 2, 0.667, 0.5),
    ("toolrl", "fine", "accuracy", 0.4, 0, 0.4, 0.5),
    ("tool_n1", "binary", "accuracy", 0.7, 1, 0.7, 0.85),
    ("tool_n1", "binary", "accuracy_before", 0.5, 0, 0.5, 0.3),
    ("otc", "otc_ppo", "calls", 1.5, 0, 0.938, 0.75),
    ("otc", "otc_grpo", "accuracy", 0.9, 4, -0.05, -0.02),
    ("otc", "otc_grpo", "productivity", 0.7, 5, 1.167, 1.4),
    ("curriculum", "uniform", "rolled_per_trained", 2.9, 0, 1.45, 1.5),
    ("curriculum", "difficulty", "accuracy", 0.9, 1, -0.05, -0.03),
    ("skyrl", "rl", "accuracy_before", 0.4, 0, 0.4, 0.35),
    ("skyrl", "rl", "accuracy", 0.7, 1, 0.7, 0.75),
    ("skyrl", "rl", "viewed", 0.6, 2, 0.34, 0.4),
]
"""Miniature, arm and figure, the value that it has instead; the first check that does not hold any more, by its place,
what it measures then, and its bar."""


@pytest.mark.parametrize("name", methods.NAMES)
def test_an_effect_that_is_there_is_seen(name):
    checks = judged(methods.named(name), SEEN[name])
    assert checks and all(check.ok for check in checks), checks


@pytest.mark.parametrize(("name", "arm", "figure", "value", "place", "measured", "bar"), MISSED)
def test_an_effect_that_is_not_there_is_not_seen_and_the_check_says_why(name, arm, figure, value, place, measured, bar):
    figures = {a: dict(of) for a, of in SEEN[name].items()}
    figures[arm][figure] = value
    checks = judged(methods.named(name), figures)
    missed = checks[place]
    assert [check.ok for check in checks[: place + 1]] == [True] * place + [False]
    assert (missed.value, missed.bar) == (pytest.approx(measured, abs=5e-4), bar)
    assert re.search(rf" {missed.value:.3f}\b.* {bar:g}\b", missed.said)


@pytest.mark.parametrize(("fine", "ok"), [(14, True), (20, False)])
def test_a_coarse_reward_that_never_gets_to_a_half_took_at_least_the_run_and_the_check_says_so(fine, ok):
    figures = {
        "fine": {"accuracy_before": 0.1, "accuracy": 0.9, "updates_to_half": fine},
        "coarse": {"updates_to_half": 32, "reached_half": 0.0},
    }
    *_, share = judged(methods.named("toolrl"), figures)
    assert (share.ok, share.value) == (ok, fine / 32)
    assert re.search(r"\(.*\b32\b.*\)", share.said)


@pytest.mark.parametrize(
    ("name", "bar"),
    [("artist_functions", "BEFORE"), ("tool_n1", "BEFORE"), ("retool", "RL_ALONE"), ("skyrl", "BEFORE")],
)
def test_a_bar_on_what_was_there_before_is_not_one_that_the_lessons_own_gate_lets_a_base_miss(name, bar):
    miniature = methods.named(name)
    _, highest = lessons.named(miniature.base.lesson).gates["accuracy"]
    assert getattr(import_module(f"miniatures.reproduce.methods.{name}"), bar) >= highest + 0.05


@pytest.mark.parametrize("name", methods.NAMES)
def test_a_missing_figure_is_an_error_that_names_the_arm_and_no_verdict(name):
    emptied = {arm: {} for arm in SEEN[name]}
    with pytest.raises(ReproductionFailed, match=rf"'({'|'.join(SEEN[name])})' .*'\w+'"):
        judged(methods.named(name), emptied)


def test_every_miniature_has_arms_curves_and_a_claim():
    for name in methods.NAMES:
        miniature = methods.named(name)
        assert miniature.name == name and len(miniature.claim) > 40 and miniature.panels and miniature.columns
        assert set(SEEN[name]) == set(miniature.arms)


def test_a_base_arm_that_stopped_calling_is_a_verdict_and_no_crash():
    arms = {name: dict(values) for name, values in SEEN["search_r1"].items()}
    arms["rl"]["calls"] = 0.0
    assert not judged(methods.named("search_r1"), arms)[2].ok
    arms["otc"]["calls"] = 0.0
    assert not judged(methods.named("search_r1"), arms)[2].ok
    arms = {name: dict(values) for name, values in SEEN["otc"].items()}
    arms["torl"] |= {"accuracy": 0.0, "productivity": 0.0}
    assert [check.ok for check in judged(methods.named("otc"), arms)] == [True] * 6
    arms["otc_grpo"]["productivity"] = 0.0
    assert not judged(methods.named("otc"), arms)[5].ok
