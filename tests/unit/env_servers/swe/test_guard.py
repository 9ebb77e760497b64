"""The guard puts back what a patch may not change, whatever it makes of git's settings and files that were there."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from env_servers.swe.programs import source
from env_servers.swe.remote.judging import paths_of
from env_servers.swe.suite import CONFIGURATION

FILES = {
    "conftest.py": "ours\n",
    "tests/test_lib.py": "test\n",
    "src/lib.py": "code\n",
    "built/setup.cfg": "[x]\n",
    "__pycache__/conftest.pyc": "old\n",
}
EVIL = "import sys; sys.exit('no code of the repository runs here')\n"


@pytest.fixture
def guarded(tmp_path):
    """(repository, guard): `guard(verb)` -> what was left out, once that is known."""
    place, repo = tmp_path / "place", tmp_path / "repo"
    (place / "out").mkdir(parents=True)
    for path, text in FILES.items():
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_text(text)
    (repo / "data").symlink_to("built")
    (place / "protected.json").write_text(
        json.dumps({"paths": ["tests/test_lib.py", "more/test_new.py"], "pattern": CONFIGURATION.pattern})
    )
    (place / "guard.py").write_text(f"{source('guard')}\nmain(os.path.dirname(os.path.abspath(__file__)))\n")

    def guard(verb):
        subprocess.run([sys.executable, "-I", "-S", str(place / "guard.py"), verb], cwd=repo, check=True)
        return json.loads((place / "out/left_out").read_text()) if verb == "restore" else None

    guard("keep")
    return repo, guard


def as_it_was(repo):
    assert {path: (repo / path).read_text() for path in FILES if not path.endswith(".pyc")} == {
        p: t for p, t in FILES.items() if not p.endswith(".pyc")
    }
    assert os.readlink(repo / "data") == "built"


def test_a_patch_of_code_alone_removes_nothing(guarded):
    repo, guard = guarded
    (repo / "src/lib.py").write_text("other\n")
    (repo / "fast.so").write_text("ignored by git, and the image's\n")
    assert (
        guard("restore") == []
        and (repo / "src/lib.py").read_text() == "other\n"
        and (repo / "__pycache__/conftest.pyc").exists()
    )


def test_files_that_git_ignores_or_assumes_unchanged_are_removed(guarded):
    repo, guard = guarded
    (repo / ".gitignore").write_text("*\n")
    (repo / "tests/.git").mkdir()
    (repo / "tests/conftest.py").write_text(EVIL)
    (repo / "sitecustomize.py").write_text(EVIL)
    (repo / "conftest.py").write_text(EVIL)
    (repo / "linked").symlink_to("src")
    assert guard("restore") == ["conftest.py", "linked", "sitecustomize.py", "tests/conftest.py"]
    assert not os.path.lexists(repo / "linked") and not (repo / "tests/conftest.py").exists()
    as_it_was(repo)


def test_a_file_may_have_become_a_directory_and_a_directory_a_file(guarded):
    repo, guard = guarded
    for path in ("conftest.py", "tests/test_lib.py", "data"):
        (repo / path).unlink()
    (repo / "conftest.py/tests").mkdir(parents=True)
    (repo / "conftest.py/tests/x.py").write_text("")
    (repo / "tests").rmdir()
    for path in ("tests", "data", "more"):
        (repo / path).write_text("a file\n")
    assert guard("restore") == ["conftest.py", "data", "more", "tests", "tests/test_lib.py"]
    assert not (repo / "more").exists(), "the row's own test comes there"
    as_it_was(repo)


def test_a_compiled_file_of_the_patch_is_not_read(guarded):
    repo, guard = guarded
    (repo / "__pycache__/conftest.pyc").write_text("another one\n")
    (repo / "src/lib.pyc").write_text("new\n")
    assert guard("restore") == ["__pycache__/conftest.pyc", "src/lib.pyc"]
    assert list(repo.rglob("*.pyc")) == []


def test_names_may_be_any_bytes(guarded):
    repo, guard = guarded
    directory = os.fsencode(repo) + b"/a\xff\n"
    os.mkdir(directory)
    with open(directory + b"/conftest.py", "w") as f:
        f.write(EVIL)
    assert guard("restore") == ["a\udcff\n/conftest.py"] and os.listdir(directory) == []


def test_the_paths_of_a_patch_include_renames_and_binary_files():
    renamed = (
        "diff --git a/tests/a.txt b/tests/b.txt\nsimilarity index 100%\nrename"
        " from tests/a.txt\nrename to tests/b.txt\n"
    )
    binary = (
        "diff --git a/tests/x.bin b/tests/x.bin\nnew file mode 100644\nindex 000..123\nGIT binary patch\nliteral"
        " 3\nKc${NkU}69O00aO4\n\n"
    )
    text = "--- a/old.py\n+++ b/new.py\t2024\n@@ -1 +1 @@\n-a\n+b\n"
    assert paths_of((renamed + binary + text).encode()) == {
        "tests/a.txt",
        "tests/b.txt",
        "tests/x.bin",
        "old.py",
        "new.py",
    }
