"""One rule for relative paths: what a recipe names is beside it, what a flag names is in the current directory."""

from __future__ import annotations

import tomllib

import pytest

from openrlhf_tir.cli.checks.run_dir import check_writable
from openrlhf_tir.config import recipe_paths
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError


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


@pytest.mark.parametrize("name", ["models/qwen/small", ".models/small"])
def test_a_name_that_the_hub_cannot_have_is_a_path_beside_the_recipe_even_if_missing(recipe, tmp_path, name):
    """So the message that it does not exist names the place that was meant."""
    assert recipe(f'[actor]\nmodel_name_or_path = "{name}"\n').actor.model_name_or_path == f"{tmp_path}/recipes/{name}"


def test_several_files_in_one_text_are_each_beside_the_recipe(recipe, tmp_path):
    cfg = recipe('[data]\nprompt_dataset = "rows.jsonl,Org/set"\n')
    assert cfg.data.prompt_dataset == f"{tmp_path}/recipes/rows.jsonl,Org/set"


def test_a_name_of_the_hub_and_an_absolute_path_stay(recipe):
    cfg = recipe('[data]\nprompt_dataset = "/data/x.jsonl"\n[actor]\nmodel_name_or_path = "Qwen/Qwen2.5-7B"\n')
    assert (cfg.data.prompt_dataset, cfg.actor.model_name_or_path) == ("/data/x.jsonl", "Qwen/Qwen2.5-7B")


def test_a_flag_counts_from_the_current_directory(recipe):
    cfg = recipe('[data]\nprompt_dataset = "rows.jsonl"\n', **{"data.prompt_dataset": "other.jsonl"})
    assert cfg.data.prompt_dataset == "other.jsonl"


def test_an_option_of_an_environments_server_that_names_a_file_is_beside_the_recipe(tmp_path):
    (tmp_path / "wiki.txt").touch()
    (tmp_path / "wiki").mkdir()
    path = tmp_path / "r.toml"
    path.write_text(
        '[env]\nname = "search"\nserver_options = { corpus = "wiki.jsonl", index = "wiki.txt", mode = "wiki", k = 5,'
        ' image = "docker.io/owner/name:latest", share = ".5",'
        ' mirror = "http://host/wiki.jsonl" }\n'
        '[envs.other]\nname = "search"\nserver_options = { corpus = "../wiki.jsonl" }\n'
    )
    table = recipe_paths.beside(tomllib.loads(path.read_text()), tmp_path)
    assert table["env"]["server_options"] == {
        "corpus": str(tmp_path / "wiki.jsonl"),
        "index": str(tmp_path / "wiki.txt"),
        "mode": "wiki",
        "k": 5,
        "image": "docker.io/owner/name:latest",
        "share": ".5",
        "mirror": "http://host/wiki.jsonl",
    }
    assert table["envs"]["other"]["server_options"] == {"corpus": str(tmp_path.parent / "wiki.jsonl")}


def test_a_run_directory_in_the_copy_that_ray_makes_of_a_jobs_working_directory_is_refused(tmp_path):
    copy = tmp_path / "working_dir_files" / "_ray_pkg_1f2e3d"
    copy.mkdir(parents=True)
    with pytest.raises(ConfigError, match="run_dir") as caught:
        check_writable(load(None, {"run_dir": str(copy / "runs" / "a")}))
    assert str(copy) in str(caught.value)
    check_writable(load(None, {"run_dir": str(tmp_path / "runs")}))
