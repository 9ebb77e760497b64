"""`openrlhf-tir eval --suite` from the outside: what is missing or contradicts ends it with exit code 2 at once."""

from __future__ import annotations

import json

import pytest

from openrlhf_tir.cli import main
from openrlhf_tir.cli.exit_codes import code_of
from openrlhf_tir.errors import ConfigError

REFUSED = code_of(ConfigError(""))


def said(capsys, *words: str) -> str:
    assert main(["eval", *words]) == REFUSED
    return capsys.readouterr().err


def test_a_suite_without_its_file_says_where_to_get_it(capsys, tmp_path):
    text = said(
        capsys, "--model", "m", "--run-dir", str(tmp_path / "r"), "--suite", "aime24", "--suites-dir", str(tmp_path)
    )
    assert "HuggingFaceH4/aime_2024" in text and "--suite aime24=FILE" in text and " 30 " in text


def test_items_without_anything_to_evaluate_are_refused(capsys, tmp_path):
    assert "--suite" in said(capsys, "--model", "m", "--run-dir", str(tmp_path / "r"), "--sweep", "env.max_calls=0,2")


def test_without_held_out_rows_they_are_asked_for_and_not_those_of_training(capsys, tmp_path):
    text = said(capsys, "--model", "m", "--run-dir", str(tmp_path / "r"))
    assert "eval.dataset " in text and "data.prompt_dataset" not in text


def test_a_cut_of_a_set_has_no_effect_and_is_refused(capsys, tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"problem": "P", "answer": 1}) + "\n")
    text = said(
        capsys, "--model", "m", "--run-dir", str(tmp_path / "r"), "--suite", f"aime24={tmp_path / 'a.jsonl'}",
        "--eval.max_samples", "3",
    )  # fmt: skip
    assert "--eval.max_samples " in text and "eval.dataset" in text


def test_a_sweep_of_calls_that_an_agent_decides_is_refused(capsys, tmp_path):
    words = [
        "--model", "m", "--run-dir", str(tmp_path / "r"), "--rollout.agent", "external", "--eval.dataset", "x.jsonl",
        "--sweep", "env.max_calls=0,2",
    ]  # fmt: skip
    assert "--sweep env.max_calls " in said(capsys, *words)


@pytest.mark.parametrize("name", ["aime25", "bfcl_live_multiple", "apibank_l3", "bamboogle"])
def test_the_list_names_every_suite_with_its_source(capsys, name):
    from openrlhf_tir.evaluation.suites import SUITES

    assert main(["eval", "--list-suites"]) == 0
    printed = capsys.readouterr().out
    assert name in printed and SUITES[name].source in printed and SUITES[name].shape in printed


def test_the_held_out_rows_of_a_recipe_give_way_to_a_suite_and_those_of_a_flag_do_not(capsys, tmp_path):
    (tmp_path / "r.toml").write_text('[eval]\ndataset = "x.jsonl"\n')
    words = ("--recipe", str(tmp_path / "r.toml"), "--model", "m", "--run-dir", str(tmp_path / "r"))
    words += ("--suite", "aime24", "--suites-dir", str(tmp_path))
    assert "--suite aime24=FILE" in said(capsys, *words)
    text = said(capsys, *words, "--eval.dataset", "y.jsonl")
    assert "--suite " in text and "--eval.dataset " in text and "aime24" not in text
