"""What the pages of the surface say, works: every recipe loads, and every function that one names is there with the right signature."""

from __future__ import annotations

import pytest

from openrlhf_tir import filters, plugins, rewards
from openrlhf_tir.algorithms.advantages import get_estimator
from openrlhf_tir.algorithms.losses import own
from openrlhf_tir.config.settings import load
from openrlhf_tir.episodes import turns
from openrlhf_tir.filters.samples import SAMPLE_FILTER

from .docs_blocks import DOCS, block

FILES = {
    "brevity.py": ("rewards.md", "def earned"),
    "mine.py": ("algorithms.md", "def plain_gradient"),
    "digits.py": ("protocols.md", "class Digits"),
    "asks.py": ("protocols.md", "class Asks"),
    "guess.py": ("environments.md", "class GuessEnv"),
}
RECIPES = [
    (page, n)
    for page in ("rewards.md", "protocols.md", "algorithms.md", "environments.md")
    for n in range(len((DOCS / page).read_text().split("```toml\n")) - 1)
]


@pytest.mark.parametrize(("page", "n"), RECIPES)
def test_a_recipe_of_the_pages_loads_with_the_functions_that_it_names(page, n, tmp_path):
    for name, (where, holds) in FILES.items():
        (tmp_path / name).write_text(block(where, "python", holds))
    (tmp_path / "r.toml").write_text((DOCS / page).read_text().split("```toml\n")[n + 1].partition("```")[0])
    cfg = load(str(tmp_path / "r.toml"))
    get_estimator(cfg.algo.advantage.estimator)
    assert cfg.actor.policy_loss is None or plugins.load(own.POLICY_LOSS, cfg.actor.policy_loss)
    for e in cfg.environments.values():
        turns.check(e.env)
        filters.filters_of(e.filter)
        for name in e.reward.weights or [e.reward.name]:
            rewards.load(name)
        for place, name in ((rewards.GROUP_REWARD, e.reward.group), (SAMPLE_FILTER, e.filter.sample), (plugins.ENVIRONMENT, e.env.file)):
            assert name is None or plugins.load(place, name)


def test_the_tables_name_every_registered_filter_and_setting():
    page = (DOCS / "rewards.md").read_text()
    assert all(f"| `{name}` |" in page for name in filters.FILTER.registry)
    assert all(f"| `{setting}` |" in page for setting in ("reward.name", "reward.weights", "reward.group", "filter.names", "filter.sample"))
