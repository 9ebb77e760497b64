"""docs/models.md: a table of model families, each row with the source of its template and as it was tried."""

from __future__ import annotations

import re

import pytest

from benchmarks.chat_models import BEGIN, END, FAMILIES, HEADS, IMITATED, LLAMA, PAGE, TRL, VERSIONS, reader, tried
from benchmarks.chat_models import _named as named

LINES = [
    [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip().splitlines()
]


def test_every_family_has_a_row_that_names_its_templates_source():
    assert LINES[0] == list(HEADS) and len(LINES) - 2 == len(FAMILIES) >= 30
    for row, (family, source, name) in zip(LINES[2:], FAMILIES, strict=True):
        assert (row[0], row[-1]) == (family, named(source, name))
        assert source == IMITATED or VERSIONS[source] in row[-1]
    assert {TRL, LLAMA, IMITATED} == {source for _, source, _ in FAMILIES}


@pytest.mark.parametrize("family", [family for family, source, _ in FAMILIES if source == IMITATED])
def test_a_row_says_what_is_seen_when_its_template_is_tried(family):
    """The templates that are here; the others are in packages, and their rows are made by benchmarks.chat_models."""
    ((name, source, file),) = [f for f in FAMILIES if f[0] == family]
    row = next(line for line in LINES if line[0] == family)
    assert list(tried(name, reader({})(source, file), named(source, file))) == row
