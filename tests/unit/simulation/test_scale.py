"""What fits on how many cards, and what limits it: the arithmetic by hand, and the command."""

from __future__ import annotations

import json

import pytest

from openrlhf_tir.cli import main
from openrlhf_tir.memory.model_size import active_parameters, of_config
from openrlhf_tir.memory.shapes import SHAPES
from openrlhf_tir.simulation.scale import (
    HOST_S_PER_TOKEN,
    Layout,
    engine_spec,
    layouts,
    plan_scale,
)

ONE = Layout(1, 1, 1, False, "", 100.0, 900_000)


@pytest.mark.parametrize(
    ("name", "billions", "of_a_token"),
    [("0.5b", 0.494, 0.494), ("7b", 7.62, 7.07), ("32b", 32.8, 32.0), ("235b-a22b", 235.1, 21.5)],
)
def test_the_shapes_have_the_parameters_that_their_makers_say(name, billions, of_a_token):
    """The embedding of the input is left out of those of a token where it is not the head as well."""
    assert of_config(SHAPES[name]) / 1e9 == pytest.approx(billions, rel=2e-3)
    assert active_parameters(SHAPES[name]) / 1e9 == pytest.approx(of_a_token, rel=5e-3)


def test_a_small_model_is_decoded_no_faster_than_the_engines_process_takes_tokens():
    assert engine_spec(SHAPES["0.5b"], ONE, 80, 1300).decode_rate(512) == pytest.approx(1 / HOST_S_PER_TOKEN)


def test_a_large_model_is_decoded_as_fast_as_its_weights_are_read():
    """One sequence of 7.6 billion parameters in two bytes, at .6 of 3.35 TB/s: 132 tokens/s, its cache aside."""
    rate = engine_spec(SHAPES["7b"], ONE, 80, 1300).decode_rate(1)
    assert rate == pytest.approx(0.6 * 3.35e12 / (2 * 7.615e9), rel=0.01)


def test_a_mixture_reads_the_experts_that_its_sequences_reach():
    """One sequence reaches 8 of 128 experts, 512 reach all."""
    spec = engine_spec(SHAPES["30b-a3b"], ONE, 80, 1300)
    assert spec.decode_rate(1) > 5 * 0.6 * 3.35e12 / (2 * 30.5e9)
    assert spec.decode_rate(512) / 512 < spec.decode_rate(1)


def test_every_layout_uses_no_more_cards_than_there_are_and_what_does_not_fit_has_none():
    for layout in layouts(SHAPES["7b"], 8, 80):
        assert layout.learner_cards + layout.engines * layout.tensor_parallel <= 8
    assert plan_scale("32b", SHAPES["32b"], 1) is None
    assert plan_scale("235b-a22b", SHAPES["235b-a22b"], 8) is None


def test_engines_have_only_as_many_cards_as_can_share_the_models_heads():
    """28 attention heads and 4 key-value heads are not shared by eight."""
    assert {layout.tensor_parallel for layout in layouts(SHAPES["7b"], 16, 80)} == {1, 2, 4}


def test_on_one_card_the_learner_and_the_engine_share_it():
    plan = plan_scale("1.5b", SHAPES["1.5b"], 1)
    assert plan is not None and plan.layout.shared == "train.share_gpus"


def test_the_first_limit_of_32_billion_parameters_on_64_cards_is_the_push_by_file_and_not_the_one_by_nccl():
    by_file = plan_scale("32b", SHAPES["32b"], 64)
    by_nccl = plan_scale("32b", SHAPES["32b"], 64, push="nccl")
    assert by_file is not None and by_nccl is not None
    assert by_file.first_limit == "weight pushes"
    assert by_file.push_bytes == pytest.approx(2 * 32.76e9, rel=1e-3)
    assert by_nccl.first_limit == "learner's arithmetic"
    assert by_nccl.step_s < by_file.step_s / 3


def test_the_command_prints_a_row_for_each_model_and_number_of_cards(capsys):
    assert main(["size", "--cards", "1", "8", "--models", "7b", "32b", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["model"], row["cards"], row["fits"]) for row in rows] == [
        ("7b", 1, True),
        ("7b", 8, True),
        ("32b", 1, False),
        ("32b", 8, True),
    ]
    assert main(["size", "--cards", "8", "--models", "7b"]) == 0
    assert "7b" in capsys.readouterr().out


@pytest.mark.slow
def test_the_simulator_runs_a_layout(capsys):
    assert main(["size", "--cards", "8", "--models", "7b", "--simulate", "--json"]) == 0
    (row,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert row["simulated"]["step_s"] >= (row["learner_s"] + row["push_s"]) * 0.999


@pytest.mark.parametrize("arguments", [["--cards", "0"], ["--cards", "8", "--gpu-gib", "70"]])
def test_what_cannot_be_planned_is_refused(arguments, capsys):
    assert main(["size", *arguments]) != 0
    assert arguments[0] in capsys.readouterr().err
