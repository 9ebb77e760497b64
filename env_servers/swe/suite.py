"""The hidden tests of a task, and which of them count. They import the code into their own process, as SWE-bench's
do."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

CONFIGURATION = re.compile(
    r"(^|/)(conftest\.py|pytest\.ini|\.pytest\.ini|pytest\.toml|\.pytest\.toml|tox\.ini|setup\.cfg|pyproject\.toml"
    r"|sitecustomize\.py|usercustomize\.py|[^/]+\.pth|[^/]+\.py[co])$"
)
"""Files that change how pytest or Python run and are no code of a library. They stay as the repository had them,
whatever a patch changes. Compiled files are among them, because a compiled conftest.py may differ from its source."""


SHARED = frozenset({"pyproject.toml", "setup.cfg", "tox.ini"})
"""Files of CONFIGURATION that configure other programs too: a patch may change everything in them but pytest's
settings."""


def keeps_settings(path: str, before: bytes | None, after: bytes | None) -> bool:
    """Return True if a patch leaves a file's settings of pytest unchanged.

    Args:
        path: The file's path.
        before: Its content in the repository; None if it does not exist there.
        after: Its content with the patch; None if the patch removes it.
    """
    name = path.rpartition("/")[2]
    if name not in SHARED:
        return False
    try:
        return _pytest_settings(name, before or b"") == _pytest_settings(name, after or b"")
    except (ValueError, RecursionError):  # invalid syntax: what pytest would read is unknown
        return False


def _pytest_settings(name: str, content: bytes) -> object:
    """Return the tables or sections of a file that pytest reads. Raises ValueError."""
    text = content.decode()
    if name == "pyproject.toml":
        tool = tomllib.loads(text).get("tool", {})
        return tool.get("pytest") if isinstance(tool, dict) else tool
    import iniconfig  # pytest's own parser, which is installed with pytest

    try:
        sections = iniconfig.IniConfig(name, data=text).sections
    except iniconfig.ParseError as e:
        raise ValueError(str(e)) from e
    return {section: dict(values) for section, values in sections.items() if "pytest" in section}


TEST_DIRECTORIES = ("tests", "test")


def support_directories(tests: Iterable[str]) -> list[str]:
    """Return the directories whose files belong to tests: helpers and data that test files use.

    Args:
        tests: Paths of test files.

    Returns:
        The outermost `tests` or `test` above each file, and those at the repository's top, which files there may use.
    """
    directories = dict.fromkeys(TEST_DIRECTORIES)
    for path in tests:
        parts = path.split("/")[:-1]
        at = next((i for i, part in enumerate(parts) if part in TEST_DIRECTORIES), None)
        if at is not None:
            directories["/".join(parts[: at + 1])] = None
        elif parts and parts[0] == "testing":
            directories["testing"] = None
    return list(directories)


@dataclass(frozen=True, slots=True)
class Suite:
    """The hidden tests of a task.

    Attributes:
        files: Contents by path in the repository; they are put over the repository.
        must_pass: Node ids of the tests that count; empty: every test of the files.
        restored: Paths that the patch may not change, besides CONFIGURATION.
    """

    files: Mapping[str, bytes]
    must_pass: Sequence[str] = ()
    restored: Sequence[str] = field(default_factory=tuple)

    def protects(self, path: str) -> bool:
        """Return True for a file that stays as the repository or the suite has it, whatever a patch says."""
        if path in self.files or path in self.restored or CONFIGURATION.search(path):
            return True
        directories = support_directories(name.partition("::")[0] for name in (*self.files, *self.must_pass))
        return any(path.startswith(f"{directory}/") for directory in directories)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run of the tests.

    Attributes:
        tests: "passed", "failed" or "skipped" by node id, in the order of the run.
        ended: "ended", or why the run cannot be believed: time_limit, memory, output_flood, no_report,
            falsified_tests_passed.
        failures: Messages of failed tests.
    """

    tests: Mapping[str, str]
    ended: str = "ended"
    failures: Mapping[str, str] = field(default_factory=dict)

    def passes(self, suite: Suite) -> bool:
        """Return True if all tests that count have passed."""
        if self.ended != "ended":
            return False
        if suite.must_pass:
            return all(self.tests.get(name) == "passed" for name in suite.must_pass)
        return bool(self.tests) and all(status == "passed" for status in self.tests.values())
