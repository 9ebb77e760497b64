"""What the images of a server have, and how a container of one is prepared: its repository becomes one commit without
history.

No later commit, branch, tag or remote can then reveal how the bug was fixed. Everything else that the image has,
tracked or not, belongs to that commit.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from env_servers.swe.task import SweTask

from .container import Container
from .faults import ImageUnfit
from .jobs import run_setup

_EXPORTS = (
    "export GIT_{role}_NAME=repository GIT_{role}_EMAIL=repository@localhost GIT_{role}_DATE='1735689600 +0000'\n"
)
IDENTITY = "".join(_EXPORTS.format(role=role) for role in ("AUTHOR", "COMMITTER"))
PREPARE = """set -e
here=$PWD
cd {root}
git config --global --add safe.directory '*'
git cat-file -e {commit}^{{commit}}
git merge-base --is-ancestor {commit} HEAD || git checkout -q --force {commit}
git add -A
only=$(git commit-tree -m "The repository" "$(git write-tree)" < /dev/null)
git update-ref refs/heads/tir-only "$only"
git init -q "$here/new"
git -C "$here/new" fetch -q --depth 1 "file://$PWD" tir-only
git -C "$here/new" update-ref refs/heads/main FETCH_HEAD
git -C "$here/new" symbolic-ref HEAD refs/heads/main
rm -f "$here/new/.git/FETCH_HEAD" "$here/new/.git/shallow"
rm -rf .git
mv "$here/new/.git" .git
git reset -q
git rev-parse HEAD > "$here/out/base"
"""


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """What the images of a server have, and limits of scripts in their containers.

    Attributes:
        root: Directory of the repository.
        setup: Bash that makes the repository's own Python the one that is called `python`.
        work_s: Wall clock of a script that prepares a container, makes a patch or applies one.
        test_s: Wall clock of one run of the tests.
    """

    root: str = "/testbed"
    setup: str = "source /opt/miniconda3/bin/activate testbed"
    work_s: float = 60.0
    test_s: float = 60.0


async def prepare_repository(container: Container, task: SweTask, layout: ImageLayout) -> str:
    """Cut off the repository's history. Return the id of the only commit. Raises RuntimeFault."""
    script = IDENTITY + PREPARE.format(root=shlex.quote(layout.root), commit=shlex.quote(task.base_commit or ""))
    done = await run_setup(container, script, {}, layout.work_s)
    base = done.out.get("base", b"").decode("ascii", "replace").strip()
    if done.status != 0 or not base:
        raise ImageUnfit(
            f"{layout.root} in the image of {task.instance_id or task.repo} is not a repository with {task.base_commit}"
            f" (exit {done.status}): {done.log}"
        )
    return base
