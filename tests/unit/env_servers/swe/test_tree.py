"""The git directory made without git is one that git agrees with."""

from __future__ import annotations

import re
import subprocess

import pytest

from env_servers.swe.sources import bundled, names
from env_servers.swe.tree import EXECUTABLE, FILE, LINK, git_directory, read_tree


def write(top, tree):
    for path, (mode, content) in tree.items():
        full = top / path
        full.parent.mkdir(parents=True, exist_ok=True)
        if mode == LINK:
            full.symlink_to(content.decode())
        else:
            full.write_bytes(content)
            full.chmod(mode & 0o777)


def git(top, *command):
    done = subprocess.run(
        ["git", "-C", str(top), "-c", "safe.directory=*", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ODD = {
    "a.txt": (FILE, b"a\n"),
    "a/b.txt": (FILE, b""),
    "a-b/c": (EXECUTABLE, b"#!/bin/sh\n"),
    "a0": (LINK, b"a/b.txt"),
    "deep/er/est/\xc3\xa4.bin": (FILE, bytes(range(256))),
}


@pytest.mark.parametrize("tree", [ODD, bundled("dates").tree], ids=["odd", "dates"])
def test_git_finds_one_commit_of_these_files_and_nothing_changed(tree, tmp_path):
    write(tmp_path, tree)
    write(tmp_path / ".git", git_directory(tree))
    assert git(tmp_path, "fsck", "--strict").strip() == ""
    assert git(tmp_path, "status", "--porcelain") == ""
    assert git(tmp_path, "log", "--all", "--format=%s") == "The repository\n"
    assert len(git(tmp_path, "ls-files", "-z").rstrip("\0").split("\0")) == len(tree)


def test_equal_files_are_the_same_commit():
    assert git_directory(ODD) == git_directory(dict(reversed(ODD.items())))


def test_the_diff_has_the_change_and_not_the_files_that_tests_leave(tmp_path):
    write(tmp_path, ODD)
    write(tmp_path / ".git", git_directory(ODD))
    (tmp_path / "a.txt").write_text("b\n")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "x.pyc").write_text("")
    assert git(tmp_path, "status", "--porcelain") == " M a.txt\n"


def test_what_is_read_back_is_what_was_written(tmp_path):
    write(tmp_path, ODD)
    assert read_tree(tmp_path) == ODD
    with pytest.raises(ValueError, match="/nowhere "):
        read_tree(tmp_path / "nowhere")


def test_there_are_twelve_repositories_each_with_visible_and_hidden_tests():
    assert len(names()) >= 12
    for name in names():
        source = bundled(name)
        assert any(path.startswith("tests/test_") for path in source.tree) and source.suite.files
        assert not any(hidden in path for path in source.tree for hidden in source.suite.files), name


def test_an_unknown_repository_is_refused_with_the_known_ones():
    for name in ("rome", "../repos/roman", ".", ""):
        with pytest.raises(ValueError, match=f" = {re.escape(repr(name))}: .* bank, "):
            bundled(name)
