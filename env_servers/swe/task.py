"""The task of one row, checked. It is the JSON that `reset` gets, in one of three forms:

bundled    {"repo": "roman", "files": {"roman/parse.py": "..."}}
           a repository of `repos/` with some files replaced: the bug
whole      {"repo": "f", "files": {"f.py": "..."}, "tests": {"test_f.py": "..."}}
           a small repository that the row brings, with the bug in it, and the hidden tests that judge it
row        {"repo": "owner/name", "base_commit": ..., "test_patch": ..., "FAIL_TO_PASS": [...], "PASS_TO_PASS": [...]}
           as SWE-Gym and SWE-bench have them; the repository comes from the server's --mirror, or is in a container
           image: of the row (`image`), or named after its `instance_id` by the server's --image
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from env_servers.python_tir.files import MAX_ENTRIES, NAME_BYTES, PATH_BYTES


def _listed(value: Any) -> Any:
    """Return a list that may be given as JSON text, as SWE-bench keeps its own. Raises ValueError."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except RecursionError:
        raise ValueError("the list is nested too deeply. Give a list of names of tests.") from None


TestNames = Annotated[list[str], BeforeValidator(_listed)]
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
TEST = re.compile(r"(test_[A-Za-z0-9_]+|conftest)\.py")
"""The forms of a repository's name, which becomes a directory of the session, and of the name of a file of hidden
tests, all of which lie in one directory."""
MAX_BYTES = 1 << 20
"""Bytes of the largest repository that a row may bring, with its tests. A larger one comes from a mirror or an
image."""


def patch_of(text: str | None) -> bytes:
    """Return a row's patch as git reads it: data sets cut off the newline at its end."""
    text = text or ""
    return (f"{text}\n" if text and not text.endswith("\n") else text).encode()


class SweTask(BaseModel):
    """What a session works on, and what judges its patch."""

    model_config = ConfigDict(extra="ignore")
    repo: str = Field(min_length=1)
    files: dict[str, str] = Field(
        default_factory=dict,
        description="path -> content; bundled: files that replace the repository's own; whole: all files",
    )
    tests: dict[str, str] = Field(default_factory=dict, description="whole: name -> content of the hidden tests")
    base_commit: str | None = Field(None, pattern=r"^[0-9A-Za-z][0-9A-Za-z._/-]*$")
    test_patch: str | None = None
    fail_to_pass: TestNames = Field(default_factory=list, alias="FAIL_TO_PASS")
    pass_to_pass: TestNames = Field(default_factory=list, alias="PASS_TO_PASS")
    instance_id: str | None = None
    image: str | None = Field(
        None,
        validation_alias=AliasChoices("image", "docker_image", "image_name"),
        description="row: the container image that has its repository",
    )
    max_turns: int | None = Field(None, ge=1, description="fewer than the server's --max-turns")

    @model_validator(mode="after")
    def _is_complete(self) -> SweTask:
        if self.tests and self.is_row:
            raise ValueError(
                f"the row of {self.repo} has tests of its own, and a base_commit, a test_patch or an owner besides."
                " Leave one of both out."
            )
        if self.tests:
            self._check_whole()
        if not self.is_row:
            return self
        if self.base_commit is None:
            raise ValueError(
                f"the row of {self.repo} has no base_commit: what the patch applies to is unknown. Add the field."
            )
        if not self.test_patch or not self.fail_to_pass:
            raise ValueError(
                f"the row of {self.repo} has no tests: it needs test_patch and FAIL_TO_PASS,"
                " otherwise nothing can be judged."
            )
        return self

    def _check_whole(self) -> None:
        if not NAME.fullmatch(self.repo) or len(self.repo) > NAME_BYTES:
            raise ValueError(
                f"repo = {self.repo!r} is not a name for a directory: letters, digits, _, . and -,"
                f" {NAME_BYTES} of them at most."
            )
        if wrong_names := sorted(name for name in self.tests if not TEST.fullmatch(name) or len(name) > NAME_BYTES):
            raise ValueError(
                f"tests: {wrong_names[0]!r} is called neither test_NAME.py nor conftest.py,"
                f" with at most {NAME_BYTES} bytes."
            )
        if wrong_names := sorted(path for path in self.files if not _is_inside(path)):
            raise ValueError(
                f"files: {wrong_names[0]!r} is not a path below the repository."
                " Write DIRECTORY/NAME, without .., .git and a / at its beginning, each name of at most"
                f" {NAME_BYTES} bytes, {PATH_BYTES} together."
            )
        directories = {above for path in self.files for above in _parents(path)}
        if both := sorted(directories & {*self.files, *self.tests}):
            raise ValueError(f"files: {both[0]!r} is a file and a directory. Name one of both otherwise.")
        if (entries := len(directories) + len(self.files)) > MAX_ENTRIES:
            raise ValueError(
                f"the repository {self.repo} has {entries} files and directories; one that a row brings at most"
                f" {MAX_ENTRIES}, which a session has room for. Leave out what the tests do not need."
            )
        if set(self.tests) == {"conftest.py"}:
            raise ValueError(f"tests: the row of {self.repo} has a conftest.py and no test. Add a test_NAME.py.")
        if not any(path.endswith(".py") for path in self.files):
            raise ValueError(
                f"the task of {self.repo} has tests, and no *.py in `files`:"
                " a repository that a row brings has all of its files there."
            )
        if (size := sum(len(text.encode()) for text in (*self.files.values(), *self.tests.values()))) > MAX_BYTES:
            raise ValueError(
                f"the repository {self.repo} has {size} bytes; one that a row brings at most {MAX_BYTES}."
                " Put it into a --mirror."
            )

    @property
    def is_row(self) -> bool:
        """True for the third form, whose repository comes from elsewhere."""
        return bool(self.base_commit or self.test_patch or self.fail_to_pass or "/" in self.repo)


def _is_inside(path: str) -> bool:
    """Return True for a path that a file system accepts, and that stays below the repository and out of its `.git`."""
    try:
        raw = path.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    parts = raw.split(b"/")
    if b"\0" in raw or len(raw) > PATH_BYTES:
        return False
    return all(part not in (b"", b".", b"..", b".git") and len(part) <= NAME_BYTES for part in parts)


def _parents(path: str) -> list[str]:
    """Return the directories above a path, without the repository itself."""
    parts = path.split("/")
    return ["/".join(parts[:i]) for i in range(1, len(parts))]
