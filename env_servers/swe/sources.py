"""Sources: task -> what a session begins with, and the hidden tests that judge it.

bundled   repos/NAME/repo is what a session sees; repos/NAME/hidden are its hidden tests, which no session does
row       the files of the base commit, from a directory of repositories: MIRROR/owner/name, owner__name or name,
          bare or not
"""

from __future__ import annotations

import asyncio
import base64
import functools
import os
import tempfile
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .suite import Suite
from .task import SweTask
from .tree import FILE, Tree, read_tree

REPOS = Path(__file__).parent / "repos"
CHECKOUT_S = 60.0
KEPT = 16
"""Checked-out rows that are kept, the last used."""
Apply = Callable[[Tree, bytes], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    """The name of the repository's directory in a session."""
    tree: Tree
    suite: Suite


@functools.cache
def bundled(name: str) -> Source:
    """The repository as it should be. Raises ValueError for one that is not there."""
    if not (REPOS / name / "repo").is_dir() or "/" in name or name.startswith("."):
        raise ValueError(
            f"repo = {name!r}: there are {', '.join(names())}; a row of another repository is written owner/name."
        )
    tree = read_tree(REPOS / name / "repo")
    hidden = {path: content for path, (_, content) in read_tree(REPOS / name / "hidden").items()}
    return Source(name, tree, Suite(hidden))


def whole(task: SweTask) -> Source:
    """The repository that the task brings."""
    tree = {path: (FILE, text.encode()) for path, text in task.files.items()}
    return Source(task.repo, tree, Suite({name: text.encode() for name, text in task.tests.items()}))


def names() -> list[str]:
    return sorted(path.name for path in REPOS.iterdir() if (path / "repo").is_dir())


class Sources:
    def __init__(self, mirror: Path | None, apply: Apply) -> None:
        """`apply`: (tree, patch) -> what `inside/apply` tells, with `error`."""
        self._mirror = mirror
        self._apply = apply
        self._kept: OrderedDict[str, Source] = OrderedDict()

    async def of(self, task: SweTask) -> Source:
        """Raises ValueError, with a remedy, for a task that cannot be begun."""
        if task.is_row:
            return await self._row(task)
        if task.tests:
            return whole(task)
        source = bundled(task.repo)
        if strange := sorted(set(task.files) - set(source.tree)):
            raise ValueError(f"files: {', '.join(strange)} are not in the repository {task.repo}.")
        changed = {path: (source.tree[path][0], text.encode()) for path, text in task.files.items()}
        return Source(source.name, {**source.tree, **changed}, source.suite)

    async def _row(self, task: SweTask) -> Source:
        key = task.model_dump_json()
        if key not in self._kept:
            tree = await self._checkout(task.repo, task.base_commit or "")
            told = await self._apply(tree, (task.test_patch or "").encode())
            if told["error"]:
                raise ValueError(f"test_patch does not apply to {task.repo} at {task.base_commit}: {told['error']}")
            hidden = {path: base64.b64decode(data) for path, data in told["files"].items()}
            must_pass = list(dict.fromkeys([*task.fail_to_pass, *task.pass_to_pass]))
            files = {name.partition("::")[0] for name in must_pass}
            if lacking := sorted(f for f in files if f not in hidden and f not in tree):
                raise ValueError(
                    f"{task.repo} at {task.base_commit} has no {', '.join(lacking[:3])}, which FAIL_TO_PASS and"
                    " PASS_TO_PASS name."
                )
            restored = {path: tree[path][1] for path in files if path in tree and path not in hidden}
            suite = Suite({**restored, **hidden}, must_pass=must_pass, restored=tuple(told["gone"]))
            self._kept[key] = Source(task.repo.rpartition("/")[2], tree, suite)
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return self._kept[key]

    def _repository(self, repo: str) -> Path:
        if self._mirror is None:
            raise ValueError(
                f"repo = {repo!r} is not bundled, and this server has no repositories besides."
                " Start it with --mirror DIR."
            )
        parts = repo.split("/")
        if len(parts) != 2 or not all(p and p.strip(".") for p in parts):
            raise ValueError(f"repo = {repo!r} is not owner/name.")
        for place in (repo, repo.replace("/", "__"), parts[1]):
            for path in (self._mirror / place, self._mirror / f"{place}.git"):
                if (path / ".git").exists() or (path / "HEAD").is_file():
                    return path
        raise ValueError(
            f"{self._mirror} holds no repository {repo}, owner__name or name."
            f" `git clone --mirror` it there as {repo.replace('/', '__')}.git."
        )

    async def _checkout(self, repo: str, commit: str) -> Tree:
        """Return all files of a commit.

        `git archive` would leave out what the repository's .gitattributes mark `export-ignore` (pandas leaves out its
        tests) and change what they mark `export-subst`. Blobs are taken from the object store as they are.

        Raises:
            ValueError: The mirror does not have the commit.
        """
        place = str(self._repository(repo))
        listing = await _git(place, ["ls-tree", "-r", "-z", "--full-tree", commit])
        if isinstance(listing, str):
            raise ValueError(f"base_commit = {commit!r} is not in the mirror of {repo}: {listing}. Fetch it there.")
        entries = [_entry(line) for line in listing.split(b"\0") if line]
        blobs = [(path, mode, name) for path, mode, kind, name in entries if kind == b"blob"]
        wanted = b"".join(name + b"\n" for _, _, name in blobs)
        contents = await _git(place, ["cat-file", "--batch"], wanted)
        if isinstance(contents, str):
            raise ValueError(f"base_commit = {commit!r} of {repo} cannot be read: {contents}. Fetch it again.")
        return await asyncio.to_thread(_tree_of, blobs, contents)


async def _git(repository: str, words: list[str], given: bytes = b"") -> bytes | str:
    """Return what git prints when its stdin is `given`, or, as text, why it failed."""
    command = ["git", "-C", repository, "-c", "safe.directory=*", *words]
    pipe = asyncio.subprocess.PIPE
    # A file, since a process that ends without reading breaks a pipe under its writer.
    with tempfile.TemporaryFile() as stdin:
        stdin.write(given)
        stdin.seek(0)
        process = await asyncio.create_subprocess_exec(*command, stdin=stdin, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(CHECKOUT_S):
            data, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return data if process.returncode == 0 else errors.decode("utf-8", "replace").strip()


def _entry(line: bytes) -> tuple[str, int, bytes, bytes]:
    """Return (path, mode, kind, object) of a line of `git ls-tree`."""
    head, _, path = line.partition(b"\t")
    mode, kind, name = head.split(b" ")
    return os.fsdecode(path), int(mode, 8), kind, name


def _tree_of(blobs: list[tuple[str, int, bytes]], contents: bytes) -> dict[str, tuple[int, bytes]]:
    """Return the files whose contents `git cat-file --batch` printed, in the order of `blobs`.

    Raises:
        ValueError: An object is missing, as in a partial clone.
    """
    tree: dict[str, tuple[int, bytes]] = {}
    at = 0
    for path, mode, name in blobs:
        end = contents.index(b"\n", at)
        header = contents[at:end].split(b" ")
        if header[-1] == b"missing":
            raise ValueError(f"the mirror lacks the object {name.decode()} of {path}. Clone it in full.")
        size = int(header[2])
        tree[path] = mode, contents[end + 1 : end + 1 + size]
        at = end + 1 + size + 1
    return tree
