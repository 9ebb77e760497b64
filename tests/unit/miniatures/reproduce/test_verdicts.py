"""The verdict of every miniature, both ways, on figures made by hand."""

from __future__ import annotations

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
    ("zerotir", "rl", "accuracy", 0.89, "held-out accuracy after RL is 0.890, at least 0.9 is asked"),
    ("zerotir", "rl", "greedy_accuracy", 0.9, "greedy accuracy"),
    ("zerotir", "rl", "code_ratio", 0.5, "the rise of the code ratio is 0.210"),
    ("zerotir", "rl", "together", 0.2, "the correlation of the two"),
    ("zerotir", "no_tool", "accuracy", 0.6, "the same RL without the tool is 0.350"),
    ("torl", "no_tool", "accuracy", 0.6, "the same RL without the tool is 0.320"),
    ("toolrl", "fine", "accuracy_before", 0.6, "adds to no training is 0.300"),
    (
        "zero_tir_rl",
        "off_then_on",
        "accuracy",
        0.91,
        "accuracy off-then-on minus accuracy on is -0.040, at least -0.03",
    ),
    ("zero_tir_rl", "on", "accuracy", 0.6, "with the mask on"),
    ("interaction_scaling", "sweep", "accuracy_0", 0.2, "accuracy without calls"),
    ("interaction_scaling", "sweep", "accuracy_2", 0.75, "from a half is 0.250"),
    ("interaction_scaling", "sweep", "accuracy_4", 0.8, "accuracy with 4 calls"),
    ("interaction_scaling", "sweep", "accuracy_20", 0.95, "with 20 calls from that with 4"),
    ("torl", "rl", "pass_incorrect", 0.99, "the pass rate of the calls of right responses minus that of wrong ones"),
    ("torl", "rl", "accuracy", 0.6, "held-out accuracy after RL"),
    ("search_r1", "rl", "accuracy", 0.8, "held-out exact match after RL is 0.800"),
    ("search_r1", "rl", "accuracy_before", 0.6, "the rise of the exact match"),
    ("search_r1", "otc", "calls", 1.5, "searches with OTC, as a share of those without, is 0.938, at most 0.7"),
    ("search_r1", "otc", "accuracy", 0.9, "exact match with OTC minus that without"),
    ("artist_functions", "rl", "accuracy", 0.7, "the same after RL is 0.700"),
    ("artist_functions", "rl", "accuracy_before", 0.5, "before RL is 0.500, at most 0.3"),
    ("retool", "base_rl", "accuracy", 0.4, "held-out accuracy of RL from the base is 0.400, at most 0.2"),
    ("retool", "sft", "accuracy", 0.8, "held-out accuracy of fine-tuning alone"),
    ("retool", "sft_rl", "accuracy", 0.5, "held-out accuracy of RL after a cold start"),
    ("artist", "composite", "format", 0.9, "strict format at the end with the composite reward"),
    ("artist", "answer_only", "format_halfway", 0.8, "strict format halfway, composite minus answer alone is 0.050"),
    ("artist", "answer_only", "pass_halfway", 0.95, "calls that ran halfway"),
    ("artist", "composite", "pass", 0.8, "calls that ran at the end"),
    ("toolrl", "coarse", "updates_to_half", 12, "as a share of those with the coarse one, is 0.667, at most 0.5"),
    ("toolrl", "fine", "accuracy", 0.4, "perfect calls with the fine reward"),
    ("tool_n1", "binary", "accuracy", 0.7, "exact calls with the binary reward is 0.700"),
    ("tool_n1", "binary", "accuracy_before", 0.5, "exact calls before"),
    ("otc", "otc_ppo", "calls", 1.5, "otc_ppo: calls, as a share of those of ppo, is 0.938, at most 0.75"),
    ("otc", "otc_grpo", "accuracy", 0.9, "otc_grpo: accuracy minus that of torl"),
    ("otc", "otc_grpo", "productivity", 0.7, "otc_grpo: right responses per call"),
    ("curriculum", "uniform", "rolled_per_trained", 2.9, "uniform over chosen by difficulty, is 1.450, at least 1.5"),
    ("curriculum", "difficulty", "accuracy", 0.9, "chosen by difficulty minus uniform, is -0.050, at least -0.03"),
    ("skyrl", "rl", "accuracy_before", 0.4, "that are resolved before RL is 0.400, at most 0.35"),
    ("skyrl", "rl", "accuracy", 0.7, "the same after RL is 0.700, at least 0.75"),
    ("skyrl", "rl", "viewed", 0.6, "whose file was read before it was edited is 0.340, at least 0.4"),
]


@pytest.mark.parametrize("name", methods.NAMES)
def test_an_effect_that_is_there_is_seen(name):
    checks = judged(methods.named(name), SEEN[name])
    assert checks and all(check.ok for check in checks), checks


@pytest.mark.parametrize(("name", "arm", "figure", "value", "said"), MISSED)
def test_an_effect_that_is_not_there_is_not_seen_and_the_check_says_why(name, arm, figure, value, said):
    figures = {a: dict(of) for a, of in SEEN[name].items()}
    figures[arm][figure] = value
    (missed,) = [check for check in judged(methods.named(name), figures) if not check.ok][:1]
    assert said in missed.said


@pytest.mark.parametrize(("fine", "ok"), [(14, True), (20, False)])
def test_a_coarse_reward_that_never_gets_to_a_half_took_at_least_the_run_and_the_check_says_so(fine, ok):
    figures = {
        "fine": {"accuracy_before": 0.1, "accuracy": 0.9, "updates_to_half": fine},
        "coarse": {"updates_to_half": 32, "reached_half": 0.0},
    }
    *_, share = judged(methods.named("toolrl"), figures)
    assert (
        share.ok is ok and "the coarse one (at least 32: it never got there; the share is at most this)" in share.said
    )


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
