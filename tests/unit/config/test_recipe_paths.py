"""One rule for relative paths: what a recipe names is beside it, what a flag names is in the current directory."""

from __future__ import annotations

import pytest

from openrlhf_tir.config.settings import load


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A function that writes a recipe in recipes/ and loads it from the directory above."""
    (tmp_path / "recipes" / "model").mkdir(parents=True)
    (tmp_path / "recipes" / "rows.jsonl").write_text("{}\n")
    monkeypatch.chdir(tmp_path)

    def loaded(text, **overrides):
        (tmp_path / "recipes" / "r.toml").write_text(text)
        return load("recipes/r.toml", overrides)

    return loaded


def test_data_and_model_of_a_recipe_are_beside_it(recipe, tmp_path):
    cfg = recipe('[data]\nprompt_dataset = "rows.jsonl"\n[actor]\nmodel_name_or_path = "model"\n')
    assert cfg.data.prompt_dataset == str(tmp_path / "recipes" / "rows.jsonl")
    assert cfg.actor.model_name_or_path == str(tmp_path / "recipes" / "model")


def test_a_data_file_that_is_missing_is_looked_for_beside_the_recipe(recipe, tmp_path):
    cfg = recipe('[data]\nprompt_dataset = ["rows.jsonl", "more/typo.jsonl"]\n')
    assert cfg.data.prompt_dataset[1] == str(tmp_path / "recipes" / "more" / "typo.jsonl")


def test_several_files_in_one_text_are_each_beside_the_recipe(recipe, tmp_path):
    cfg = recipe('[data]\nprompt_dataset = "rows.jsonl,Org/set"\n')
    assert cfg.data.prompt_dataset == f"{tmp_path}/recipes/rows.jsonl,Org/set"


def test_a_name_of_the_hub_and_an_absolute_path_stay(recipe):
    cfg = recipe('[data]\nprompt_dataset = "/data/x.jsonl"\n[actor]\nmodel_name_or_path = "Qwen/Qwen2.5-7B"\n')
    assert (cfg.data.prompt_dataset, cfg.actor.model_name_or_path) == ("/data/x.jsonl", "Qwen/Qwen2.5-7B")


def test_a_flag_counts_from_the_current_directory(recipe):
    cfg = recipe('[data]\nprompt_dataset = "rows.jsonl"\n', **{"data.prompt_dataset": "other.jsonl"})
    assert cfg.data.prompt_dataset == "other.jsonl"
