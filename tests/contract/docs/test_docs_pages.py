"""The pages are up to date: settings are those of the schema, quoted messages are the program's, links lead somewhere,
the index names every page."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from openrlhf_tir.config import fidelity
from openrlhf_tir.config.catalog import known_keys
from openrlhf_tir.config.reference import markdown

from .docs_blocks import DOCS, PAGES, REPO


def test_the_page_of_settings_is_what_the_schema_says():
    assert (DOCS / "settings.md").read_text() == markdown(), (
        "write it again: openrlhf-tir show-config --reference > docs/settings.md"
    )


def test_the_page_of_official_settings_is_what_the_recipes_say():
    assert (DOCS / "fidelity.md").read_text() == fidelity.markdown(), (
        "write it again: openrlhf-tir show-config --fidelity > docs/fidelity.md"
    )


@cache
def messages() -> list[str]:
    """Every text of the program with a letter in it; the places where a value goes are "…". And what its scripts
    say."""
    found = []
    for path in [
        path for package in ("openrlhf_tir", "env_servers", "miniatures") for path in (REPO / package).rglob("*.py")
    ]:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    for path in (REPO / "train_scripts").glob("*.sh"):
        found += [line for line in path.read_text().splitlines() if "echo" in line]
    return found


def is_said(quote: str) -> bool:
    """Whether one text of the program holds the quote's pieces in order."""
    pattern = re.compile(".*".join(re.escape(piece.strip()) for piece in quote.split("…") if piece.strip()), re.DOTALL)
    return any(pattern.search(message) for message in messages())


QUOTES = sorted(set(re.findall(r"“([^”]+)”", (DOCS / "troubleshooting.md").read_text())))


@pytest.mark.slow
@pytest.mark.parametrize("quote", QUOTES)
def test_a_message_that_troubleshooting_quotes_is_one_of_the_programs(quote):
    assert is_said(quote), f"nothing says {quote!r} any more"


@pytest.mark.slow
def test_a_message_that_nothing_says_is_found():
    assert QUOTES and not is_said("The flux … is exhausted.")


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower().replace("`", "")).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_link_of_a_page_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), f"{page.name} links to {target}, which is not there"
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there.read_text()), f"{page.name} links to {target}: no such heading"


def test_the_index_names_every_page():
    index = (DOCS / "README.md").read_text()
    assert [p.name for p in DOCS.glob("*.md") if p.name != "README.md" and f"({p.name})" not in index] == []


SECTIONS = "actor algo ckpt data ds env eval filter logger pipeline reward rollout sft timeouts train vllm"


OTHER_NAMES = {"migration", "design-decisions", "settings", "checkpoints", "sft"} | {
    "coming_from_openrlhf", "coming_from_verl", "openrlhf_flags",
}  # fmt: skip
"""Pages that also name settings of other frameworks or of earlier versions."""


@pytest.mark.parametrize("page", [page.name for page in sorted(DOCS.glob("*.md")) if page.stem not in OTHER_NAMES])
def test_every_setting_that_a_page_names_exists(page):
    name = rf"((?:{'|'.join(SECTIONS.split())})\.[a-z0-9_.]*[a-z0-9_])"
    text = (DOCS / page).read_text()
    named = {*re.findall(rf"`{name}`", text), *re.findall(rf"--{name}(?![\w.*<])", text)}
    free = tuple(f"{key}." for key in known_keys())  # options of a reward or an environment, whose names are its own
    files = {f"{stem}.{ending}" for stem in SECTIONS.split() for ending in ("py", "sh", "json")}
    tables = {key.rpartition(".")[0] for key in known_keys()}
    assert sorted(key for key in named - {*known_keys()} - tables - files if not key.startswith(free)) == []
