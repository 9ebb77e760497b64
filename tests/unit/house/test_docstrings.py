"""A docstring says what it is about: it is read in a hover or a listing, without the name that it stands under."""

from __future__ import annotations

import re

from tests.conftest import REPO

FRAGMENT = re.compile(r'^[ \t]*r?"""(?:Of|That it|Nothing was) .*', re.MULTILINE)
"""The beginning of a docstring that is a sentence only together with a name: "digest", "of the last push"."""


def test_no_docstring_needs_its_name_to_be_a_sentence():
    files = [
        path
        for room in ("openrlhf_tir", "env_servers", "miniatures", "benchmarks")
        for path in (REPO / room).rglob("*.py")
    ]
    files = [path for path in files if "env_servers/swe/repos" not in path.as_posix()]  # what tasks are made of
    found = {
        path.relative_to(REPO).as_posix(): lines for path in files if (lines := FRAGMENT.findall(path.read_text()))
    }
    assert found == {}, 'begin with the noun: "The digest of the last push"'
    assert len(files) > 100
