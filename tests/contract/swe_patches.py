"""Patches that are tried on `swe`'s grading: forgeries, right patches, and the usual idioms of tests.

The cases are data, in `tests/data/swe/*.toml`; here are the repositories that they are for, and how a case becomes a
patch.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from env_servers.swe.suite import Suite
from env_servers.swe.tree import FILE, Tree

from .swe_hostile import new_file

DATA = Path(__file__).parents[1] / "data" / "swe"
BROKEN = "def twice(x):\n    return 2 * x + 1\n"
MENDED = "def twice(x):\n    return 2 * x\n"
TESTS = """import pytest

import lib


def test_two():
    assert lib.twice(2) == 4


@pytest.mark.parametrize("x, expected", [(0, 0), (3, 6), (-5, -10)])
def test_many(x, expected):
    assert lib.twice(x) == expected


def test_near():
    assert abs(lib.twice(2.5) - 5.0) < 1e-06


def test_text():
    assert str(lib.twice(4)) == "8"


def test_loop():
    for x, y in [(1, 2), (7, 14)]:
        assert lib.twice(x) == y
"""
SEEN_TESTS = "import lib\n\n\ndef test_zero():\n    assert lib.twice(-1) in (-1, -2)\n"
ROW_TESTS = SEEN_TESTS.replace("import lib\n", "", 1).strip("\n")
NAMES = ["test_two", "test_many[0-0]", "test_many[3-6]", "test_many[-5--10]", "test_near", "test_text", "test_loop"]


@dataclass(frozen=True)
class Base:
    """A repository with a bug, and its hidden tests."""

    name: str
    tree: Tree
    suite: Suite
    directory: str
    """Where its module is: "" or "src/"."""

    @property
    def module(self) -> str:
        return f"{self.directory}lib.py"


def tree_of(files: Mapping[str, str]) -> Tree:
    return {path: (FILE, text.encode()) for path, text in files.items()}


WHOLE = Base("a repository in the row", tree_of({"lib.py": BROKEN}), Suite({"test_lib.py": TESTS.encode()}), "")
ROW = Base(
    "a row with a src layout",
    tree_of(
        {
            "src/lib.py": BROKEN,
            "tests/test_lib.py": SEEN_TESTS,
            "pyproject.toml": '[project]\nname = "lib"\nversion = "1"\n\n[tool.pytest.ini_options]\naddopts = "-ra"\n',
        }
    ),
    Suite(
        {"tests/test_lib.py": f"{TESTS}\n\n{ROW_TESTS}\n".encode()},
        must_pass=[f"tests/test_lib.py::{name}" for name in [*NAMES, "test_zero"]],
    ),
    "src/",
)
BASES = (WHOLE, ROW)
BROKEN_FOR_THREE = """def thrice(x):
    return 3 * x


def is_even(x):
    return x % 2 == 0


def twice(x):
    return 2 * x if x != 3 else 7
"""
TESTS_OF_MORE = """import lib


def test_thrice():
    assert lib.thrice(2) == 6
    assert lib.thrice(-1) == -3


def test_text():
    assert str(lib.thrice(5)) == "15"


def test_even():
    assert lib.is_even(4)
    assert not lib.is_even(3)


def test_list():
    assert [lib.thrice(i) for i in range(3)] == [0, 3, 6]


def test_twice():
    assert lib.twice(2) == 4


def test_twice_of_three():
    assert lib.twice(3) == 6


def test_types():
    assert isinstance(lib.thrice(1), int)


def test_zero():
    assert lib.twice(0) == 0
"""
FEW_FAIL = Base(
    "a repository of whose tests one fails",
    tree_of({"lib.py": BROKEN_FOR_THREE}),
    Suite({"test_lib.py": TESTS_OF_MORE.encode()}),
    "",
)

WORDS = """def titles(text):
    return [word.capitalize() for word in text.split() if len(word) > 3]


def longest(text):
    return max(text.split(), key=len)
"""
TESTS_OF_WORDS = """import lib


def test_titles():
    assert lib.titles("hello world again") == ["Hello", "World", "Again"]


def test_short():
    assert lib.titles("one small two") == ["One", "Small", "Two"]


def test_mixed():
    assert lib.titles("an apple") == ["An", "Apple"]


def test_longest():
    assert lib.longest("some words") == "words"
"""
OF_WORDS = Base(
    "a repository whose tests are about words",
    tree_of({"lib.py": WORDS}),
    Suite({"test_lib.py": TESTS_OF_WORDS.encode()}),
    "",
)

ERRORS = """class TooShort(Exception):
    pass


def parse(text):
    return text.upper()


def joined(words):
    return "+".join(words)


def plus(a, b):
    return f"{a}+{b}"
"""
ERRORS_MENDED = ERRORS.replace(
    "    return text.upper()\n",
    "    if not text:\n        raise ValueError('the text is empty')\n    return text.upper()\n",
).replace('"+".join(words)', '"+".join(map(str, words))')
TESTS_OF_ERRORS = """import pytest

import lib


def test_parse():
    assert lib.parse("one") == "ONE"


def test_empty():
    with pytest.raises(ValueError, match="is empty"):
        lib.parse("")


def test_joined():
    assert lib.joined([1, 2]) == lib.plus(1, 2)


def test_holds():
    assert "parse" in dir(lib)
"""
OF_ERRORS = Base(
    "a repository whose tests expect errors",
    tree_of({"lib.py": ERRORS}),
    Suite({"test_lib.py": TESTS_OF_ERRORS.encode()}),
    "",
)


def cases(name: str) -> list[dict[str, Any]]:
    """Return the cases of a file, each with a name of its own."""
    found = tomllib.loads((DATA / f"{name}.toml").read_text())["case"]
    assert len({case["name"] for case in found}) == len(found)
    return found


def patch(tree: Tree, files: Mapping[str, str | None]) -> bytes:
    """Return the git patch after which files are as given; None: gone."""
    parts = []
    for path, text in files.items():
        if path not in tree and text is not None:
            parts.append(new_file(path, text) if text else f"diff --git a/{path} b/{path}\nnew file mode 100644\n")
            continue
        before = tree[path][1].decode().splitlines(keepends=True)
        after = (text or "").splitlines(keepends=True)
        head = f"diff --git a/{path} b/{path}\n" + ("deleted file mode 100644\n" if text is None else "")
        lines = difflib.unified_diff(before, after, f"a/{path}", f"b/{path}" if text is not None else "/dev/null")
        parts.append(
            head + "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
        )
    return "".join(parts).encode()


def forged(case: Mapping[str, Any], base: Base) -> bytes:
    """Return a forgery as a patch of `base`: the bug is untouched."""
    first, code = case.get("first", ""), case.get("code", "")
    module = f"{first}\n{BROKEN}\n{code}\n" if first or code else BROKEN
    files = {path.format(LIB=base.directory): text for path, text in case.get("files", {}).items()}
    return patch(base.tree, {**files, **({base.module: module} if module != BROKEN else {})})


def idiom(case: Mapping[str, Any]) -> tuple[Base, bytes, bytes]:
    """Return (the repository with its tests, the right patch, the wrong one) of an idiom."""
    right, broken, wrong = case["fault"]
    before = case["module"].replace(right, broken, 1)
    tree = tree_of({"m.py": before, **case.get("files", {})})
    base = Base(case["name"], tree, Suite({name: text.encode() for name, text in case["tests"].items()}), "")
    mended, other = case["module"], case["module"].replace(right, wrong, 1)
    return base, patch(tree, {"m.py": mended}), patch(tree, {"m.py": other})


def right(case: Mapping[str, Any], base: Base) -> bytes:
    """Return a right patch of `base`."""
    files: dict[str, str | None] = {base.module: case["lib"]} if "lib" in case else {}
    files |= {path.format(LIB=base.directory): text for path, text in case.get("files", {}).items()}
    files |= {path.format(LIB=base.directory): None for path in case.get("gone", ())}
    return patch(base.tree, files)
