"""Suite: the hidden tests of a task, how they are run, and which of them count.

apart    the tests in one process, the code in another (`inside/examiner`, `inside/subject`): the bundled repositories
inside   pytest imports the code, as SWE-bench does it: rows of other people's repositories
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

CONFIGURATION = re.compile(
    r"(^|/)(conftest\.py|pytest\.ini|\.pytest\.ini|pytest\.toml|\.pytest\.toml|tox\.ini|setup\.cfg|pyproject\.toml"
    r"|sitecustomize\.py|usercustomize\.py|[^/]+\.pth|[^/]+\.py[co])$"
)
"""What changes how pytest or Python run, and no library's code: taken from the repository as it was, whatever the patch
says. What is compiled is among it, since a conftest.py can be another one there than in its source."""


@dataclass(frozen=True, slots=True)
class Suite:
    kind: Literal["apart", "inside"]
    files: Mapping[str, bytes]
    """apart: test files in the examiner's directory. inside: paths in the repository, put over what is there."""
    packages: Sequence[str] = ()
    """apart: top-level names that the tests import from the repository."""
    must_pass: Sequence[str] = ()
    """Node ids; none: every test of the files."""
    restored: Sequence[str] = field(default_factory=tuple)
    """inside: paths that the patch may not change besides CONFIGURATION."""

    def protects(self, path: str) -> bool:
        return path in self.files or path in self.restored or bool(CONFIGURATION.search(path))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run of the tests said: node id -> passed, failed or skipped."""

    tests: Mapping[str, str]
    ended: str = "ended"
    """ended, or why the run was cut: time_limit, memory, output_flood, no_report."""
    failures: Mapping[str, str] = field(default_factory=dict)
    all_well: bool = False
    """pytest's own exit status was 0."""

    def passes(self, suite: Suite) -> bool:
        if suite.must_pass:
            return all(self.tests.get(name) == "passed" for name in suite.must_pass)
        return self.all_well and bool(self.tests) and all(how == "passed" for how in self.tests.values())
