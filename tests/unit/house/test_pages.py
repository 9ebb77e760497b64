"""What pages say of the code's structure is so: the files that they name exist, and the layers are those that are
enforced."""

from __future__ import annotations

import re

import pytest

from tests.unit.house.test_layering import LAYERS, REPO

PAGES = sorted([*REPO.glob("*.md"), *(REPO / "docs").glob("*.md")])
FILE = re.compile(r"`([\w./-]+/[\w.-]+\.(?:py|sh|sbatch|yaml|toml))`")
ROOTS = ("", "openrlhf_tir", "env_servers", "miniatures", "openrlhf_tir/config/recipes")
"""Where a page's paths may begin."""
OF_THE_PAST = {"migration.md"}
"""Pages that name files which are gone."""


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in OF_THE_PAST], ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page):
    named = set(FILE.findall(page.read_text()))
    assert [name for name in sorted(named) if not any((REPO / root / name).exists() for root in ROOTS)] == []


def test_the_architecture_page_has_the_layers_that_are_enforced():
    page = (REPO / "docs" / "architecture.md").read_text()
    chain = re.search(r"`(cli, __main__ -> [^`]+)`", page)
    assert chain is not None
    drawn = [set(layer.replace("\n", " ").split(", ")) for layer in re.split(r"\s*->\s*", chain[1])]
    assert drawn == LAYERS[::-1]
