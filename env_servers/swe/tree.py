"""The files of a repository as plain data, and a git directory with one commit of them, made without git.

    Tree   path -> (mode, content); modes are git's: 0o100644, 0o100755, and 0o120000 for a symbolic link, whose content
           is its target

The commit has no parent and a fixed author and date: the same files are the same commit, and no history reveals the
bug.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

Tree = Mapping[str, tuple[int, bytes]]
FILE = 0o100644
EXECUTABLE = 0o100755
LINK = 0o120000
AUTHOR = "repository <repository@localhost> 1735689600 +0000"
IGNORED = "__pycache__/\n*.pyc\n.pytest_cache/\n.mypy_cache/\n.ruff_cache/\n*.egg-info/\n"
"""Patterns that git ignores. They are in the git directory and not in the repository, so that caches of tests are never
part of a patch."""
ATTRIBUTES = "* !diff !filter !text !eol !ident !merge !working-tree-encoding\n"
"""Attributes that override the repository's own .gitattributes: none of these may hide a change or run a program."""
CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n"


def read_tree(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Return all files below a directory, without git's own and caches. Raises ValueError if there are none."""
    tree: dict[str, tuple[int, bytes]] = {}
    for top, names, files in os.walk(directory):
        names[:] = sorted(
            directory_name
            for directory_name in names
            if directory_name not in (".git", "__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache")
        )
        for name in sorted(
            [*files, *(directory_name for directory_name in names if os.path.islink(f"{top}/{directory_name}"))]
        ):
            path = Path(top, name)
            mode = path.lstat().st_mode
            relative = str(path.relative_to(directory))
            if stat.S_ISLNK(mode):
                tree[relative] = LINK, os.fsencode(os.readlink(path))
            elif stat.S_ISREG(mode):
                tree[relative] = EXECUTABLE if mode & 0o100 else FILE, path.read_bytes()
    if not tree:
        raise ValueError(f"{directory} holds no repository: there are no files.")
    return tree


def contents(tree: Tree) -> dict[str, bytes]:
    """Return the regular files of a tree."""
    return {path: content for path, (mode, content) in tree.items() if mode != LINK}


def executables_of(tree: Tree) -> list[str]:
    """Return the paths of the executables of a tree."""
    return [path for path, (mode, _) in tree.items() if mode == EXECUTABLE]


def links_of(tree: Tree) -> dict[str, bytes]:
    """Return the targets of the links of a tree, by path."""
    return {path: content for path, (mode, content) in tree.items() if mode == LINK}


def git_directory(tree: Tree) -> dict[str, tuple[int, bytes]]:
    """Return the contents of a `.git` with `tree` committed on branch main, and an index that matches."""
    files: dict[str, tuple[int, bytes]] = {}

    def store(kind: str, body: bytes) -> bytes:
        data = b"%s %d\0%s" % (kind.encode(), len(body), body)
        name = hashlib.sha1(data).hexdigest()
        files[f"objects/{name[:2]}/{name[2:]}"] = 0o444, zlib.compress(data, 1)
        return bytes.fromhex(name)

    blobs = {path: (mode, len(content), store("blob", content)) for path, (mode, content) in tree.items()}

    def directory(entries: dict[str, tuple[int, bytes]]) -> bytes:
        """Store the tree object of a directory and return its id. `entries` are mode and id by path below it."""
        direct: dict[str, tuple[int, bytes]] = {}
        below: dict[str, dict[str, tuple[int, bytes]]] = {}
        for path, entry in entries.items():
            head, slash, remainder = path.partition("/")
            if slash:
                below.setdefault(head, {})[remainder] = entry
            else:
                direct[head] = entry
        direct |= {name: (0o40000, directory(inner)) for name, inner in below.items()}
        order = sorted(direct, key=lambda name: name + "/" * (direct[name][0] == 0o40000))
        return store("tree", b"".join(b"%o %s\0%s" % (direct[n][0], os.fsencode(n), direct[n][1]) for n in order))

    root = directory({path: (mode, name) for path, (mode, _, name) in blobs.items()})
    commit = store("commit", f"tree {root.hex()}\nauthor {AUTHOR}\ncommitter {AUTHOR}\n\nThe repository\n".encode())
    texts = {
        "HEAD": "ref: refs/heads/main\n",
        "config": CONFIG,
        "info/exclude": IGNORED,
        "info/attributes": ATTRIBUTES,
        "refs/heads/main": commit.hex() + "\n",
    }
    files |= {name: (0o644, text.encode()) for name, text in texts.items()}
    files["index"] = 0o644, _index(blobs)
    return files


def _index(blobs: Mapping[str, tuple[int, int, bytes]]) -> bytes:
    """Return an index of version 2, without times: git then compares contents at its first look."""
    body = struct.pack(">4sII", b"DIRC", 2, len(blobs))
    for path, (mode, size, name) in sorted(blobs.items(), key=lambda item: os.fsencode(item[0])):
        raw = os.fsencode(path)
        entry = (
            struct.pack(">10I", 0, 0, 0, 0, 0, 0, mode, 0, 0, size)
            + name
            + struct.pack(">H", min(len(raw), 0xFFF))
            + raw
        )
        body += entry + b"\0" * (8 - len(entry) % 8)
    return body + hashlib.sha1(body).digest()
