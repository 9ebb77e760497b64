"""The official settings beside the recipes': every difference has a reason, and the page is what the recipes say."""

from __future__ import annotations

import pytest

from openrlhf_tir.config import fidelity
from openrlhf_tir.config.settings import RECIPES, load


def facts(name: str) -> fidelity.RecipeFacts:
    return next(recipe for method in fidelity.methods() for recipe in method.recipe if recipe.name == name)


RECIPES_OF_METHODS = [recipe for method in fidelity.methods() for recipe in method.recipe]


@pytest.mark.parametrize("recipe", RECIPES_OF_METHODS, ids=lambda recipe: recipe.name)
def test_every_difference_has_a_reason_and_no_reason_is_left_where_there_is_none(recipe):
    settings = [row for row in fidelity.rows(recipe) if row.fact.here is not None]
    assert [row.fact.official for row in settings if row.same is (row.fact.why is not None)] == []


def test_every_recipe_of_a_published_method_has_a_table():
    tables = [recipe.name for method in fidelity.methods() for recipe in method.recipe]
    assert sorted(tables) == sorted(p.stem for p in RECIPES.glob("*.toml") if not p.stem.endswith(("_cpu", "_one_gpu")))


def test_a_recipe_that_changes_is_no_longer_the_same():
    table = facts("search_r1_7b")
    assert all(row.same for row in fidelity.rows(table) if row.fact.why is None)
    changed = load("search_r1_7b", {"train.batch_size": "1280", "train.max_steps": "2010"})
    differing = {row.fact.here for row in fidelity.rows(table, changed) if not row.same and row.fact.why is None}
    assert differing == {"train.batch_size", "updates_per_batch", "train.max_steps"}


def test_a_fact_is_a_setting_or_a_statement():
    stated = fidelity.Fact(official="x", stated="y", why="z")
    row = fidelity.rows(fidelity.RecipeFacts(name="torl_7b", source="s", setting=[stated]))[0]
    assert (row.here, row.same) == ("y", False)
