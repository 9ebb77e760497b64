"""A docstring says what it is about: it is read in a hover or a listing, without the name that it stands under."""

from __future__ import annotations

import re

from tests.conftest import REPO

FRAGMENT = re.compile(r'^[ \t]*r?"""(?:Of|That it|Nothing was) .*', re.MULTILINE)
"""The beginning of a docstring that is a sentence only together with a name: "digest", "of the last push"."""

CUT_AT_A_LINE = re.compile(r"""(?:__doc__|getdoc\().*\.(?:r?partition|r?split)\(["']\\n["']|__doc__.*splitlines""")
"""Code that takes a line of a docstring, whose first sentence may go on in the next."""


def found_by(pattern: re.Pattern[str]) -> dict[str, list[str]]:
    """Return what a pattern finds in the code, by file."""
    files = [
        path
        for room in ("openrlhf_tir", "env_servers", "miniatures", "benchmarks")
        for path in (REPO / room).rglob("*.py")
    ]
    files = [path for path in files if "env_servers/swe/repos" not in path.as_posix()]  # what tasks are made of
    assert len(files) > 100
    return {path.relative_to(REPO).as_posix(): lines for path in files if (lines := pattern.findall(path.read_text()))}


def test_no_docstring_needs_its_name_to_be_a_sentence():
    assert found_by(FRAGMENT) == {}, 'begin with the noun: "The digest of the last push"'


def test_no_docstring_is_cut_at_the_end_of_a_line():
    """As the description of a command it would stop in mid-sentence."""
    assert found_by(CUT_AT_A_LINE) == {}
