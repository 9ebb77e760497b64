"""Find what a session of a task begins with, and the hidden tests that judge it.

bundled   repos/NAME/repo is what a session sees; repos/NAME/hidden has its hidden tests, which no session sees
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
from weakref import WeakValueDictionary

from env_servers.python_tir.sandbox import SandboxError

from .suite import Suite
from .task import SweTask, patch_of
from .tree import FILE, Tree, read_tree

REPOS = Path(__file__).parent / "repos"
CHECKOUT_S = 60.0
"""Seconds of one git command."""
MAX_CACHED = 16
"""Number of checked-out rows that are kept, the most recently used ones."""
Apply = Callable[[Tree, bytes], Awaitable[dict[str, Any]]]
"""Applies a patch and returns the result of `inside/apply`."""


@dataclass(frozen=True, slots=True)
class Source:
    """A repository and its hidden tests.

    Attributes:
        name: Name of the repository's directory in a session.
    """

    name: str
    tree: Tree
    suite: Suite


@functools.cache
def bundled(name: str) -> Source:
    """Return a bundled repository without a bug. Raises ValueError for an unknown name."""
    if not (REPOS / name / "repo").is_dir() or "/" in name or name.startswith("."):
        raise ValueError(
            f"repo = {name!r}: there are {', '.join(names())}; a row of another repository is written owner/name."
        )
    tree = read_tree(REPOS / name / "repo")
    hidden = {path: content for path, (_, content) in read_tree(REPOS / name / "hidden").items()}
    return Source(name, tree, Suite(hidden))


def own_repository(task: SweTask) -> Source:
    """Return the repository that the task brings."""
    tree = {path: (FILE, text.encode()) for path, text in task.files.items()}
    return Source(task.repo, tree, Suite({name: text.encode() for name, text in task.tests.items()}))


def names() -> list[str]:
    """Return the names of the bundled repositories."""
    return sorted(path.name for path in REPOS.iterdir() if (path / "repo").is_dir())


class Sources:
    """The sources of a server's tasks."""

    def __init__(self, mirror: Path | None, apply: Apply) -> None:
        """Create the collection.

        Args:
            mirror: Directory of the repositories of rows; None: there are none.
            apply: Applies a patch in a sandbox.
        """
        self._mirror = mirror
        self._apply = apply
        self._cached: OrderedDict[str, Source] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """The lock of each row that is being made; an entry lives as long as a session waits for it."""

    async def of(self, task: SweTask) -> Source:
        """Return the source of a task.

        Raises:
            ValueError: The task cannot be started. The message has a remedy.
            SandboxError: The mirror or the sandbox failed.
        """
        if task.is_row:
            return await self._row(task)
        if task.tests:
            return own_repository(task)
        source = bundled(task.repo)
        if unknown := sorted(set(task.files) - set(source.tree)):
            raise ValueError(f"files: {', '.join(unknown)} are not in the repository {task.repo}.")
        changed = {path: (source.tree[path][0], text.encode()) for path, text in task.files.items()}
        return Source(source.name, {**source.tree, **changed}, source.suite)

    async def _row(self, task: SweTask) -> Source:
        """Return the source of a row, from the mirror. Sessions of a group begin at once: the first one makes it."""
        key = task.model_dump_json(exclude={"max_turns"})
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            if key not in self._cached:
                self._cached[key] = await self._made(task)
        self._cached.move_to_end(key)
        while len(self._cached) > MAX_CACHED:
            self._cached.popitem(last=False)
        return self._cached[key]

    async def _made(self, task: SweTask) -> Source:
        """Check a row out and apply its test patch. Raises as `of`."""
        tree = await self._checkout(task.repo, task.base_commit or "")
        applied = await self._apply(tree, patch_of(task.test_patch))
        if applied["error"]:
            raise ValueError(f"test_patch does not apply to {task.repo} at {task.base_commit}: {applied['error']}")
        hidden = {path: base64.b64decode(data) for path, data in applied["files"].items()}
        must_pass = list(dict.fromkeys([*task.fail_to_pass, *task.pass_to_pass]))
        files = {name.partition("::")[0] for name in must_pass}
        if lacking := sorted(file for file in files if file not in hidden and file not in tree):
            raise ValueError(
                f"{task.repo} at {task.base_commit} has no {', '.join(lacking[:3])}, which FAIL_TO_PASS and"
                " PASS_TO_PASS name."
            )
        restored = {path: tree[path][1] for path in files if path in tree and path not in hidden}
        suite = Suite({**restored, **hidden}, must_pass=must_pass, restored=tuple(applied["gone"]))
        return Source(task.repo.rpartition("/")[2], tree, suite)

    def _repository(self, repo: str) -> Path:
        """Return the directory of a repository in the mirror. Raises ValueError."""
        if self._mirror is None:
            raise ValueError(
                f"repo = {repo!r} is not bundled, and this server has no repositories besides."
                " Start it with --mirror DIR."
            )
        parts = repo.split("/")
        if len(parts) != 2 or not all(part and part.strip(".") for part in parts):
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
        tests) and change what they mark `export-subst`. So blobs are taken from the object store as they are.

        Raises:
            ValueError: The mirror does not have the commit.
        """
        place = str(self._repository(repo))
        listing = await _git(place, ["ls-tree", "-r", "-z", "--full-tree", commit])
        if isinstance(listing, str):
            raise ValueError(f"base_commit = {commit!r} is not in the mirror of {repo}: {listing}. Fetch it there.")
        entries = [_entry(line) for line in listing.split(b"\0") if line]
        blobs = [(path, mode, name) for path, mode, kind, name in entries if kind == b"blob"]
        requests = b"".join(name + b"\n" for _, _, name in blobs)
        contents = await _git(place, ["cat-file", "--batch"], requests)
        if isinstance(contents, str):
            raise ValueError(f"base_commit = {commit!r} of {repo} cannot be read: {contents}. Fetch it again.")
        return await asyncio.to_thread(_tree_of, blobs, contents)


async def _git(repository: str, arguments: list[str], stdin_bytes: bytes = b"") -> bytes | str:
    """Return the output of git as bytes, or the reason of its failure as text.

    Raises:
        SandboxError: It takes more than CHECKOUT_S.
    """
    command = ["git", "-C", repository, "-c", "safe.directory=*", *arguments]
    pipe = asyncio.subprocess.PIPE
    # A file, because writing to a pipe fails if the process ends without reading it.
    with tempfile.TemporaryFile() as stdin:
        stdin.write(stdin_bytes)
        stdin.seek(0)
        process = await asyncio.create_subprocess_exec(*command, stdin=stdin, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(CHECKOUT_S):
            data, errors = await process.communicate()
    except TimeoutError:
        raise SandboxError(
            f"git {arguments[0]} in the mirror {repository} took more than {CHECKOUT_S:g} s. Put the mirror on a faster"
            " disk, or run less beside this server."
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()  # otherwise it stays a zombie, and its pipes stay open, until they are collected
    return data if process.returncode == 0 else errors.decode("utf-8", "replace").strip()


def _entry(line: bytes) -> tuple[str, int, bytes, bytes]:
    """Return path, mode, kind and object of a line of `git ls-tree`."""
    head, _, path = line.partition(b"\t")
    mode, kind, name = head.split(b" ")
    return os.fsdecode(path), int(mode, 8), kind, name


def _tree_of(blobs: list[tuple[str, int, bytes]], contents: bytes) -> dict[str, tuple[int, bytes]]:
    """Return the files whose contents `git cat-file --batch` has printed, in the order of `blobs`.

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
