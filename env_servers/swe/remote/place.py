"""Place: what the images of a server have, and a container of one made ready: its repository is one commit without
history.

No later commit, branch, tag or remote tells then how the bug was mended. What the image has besides, tracked or not,
belongs to that commit."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from env_servers.swe.task import SweTask

from .container import Container
from .faults import ImageUnfit
from .jobs import run_job

_SAYS = "export GIT_{who}_NAME=repository GIT_{who}_EMAIL=repository@localhost GIT_{who}_DATE='1735689600 +0000'\n"
IDENTITY = "".join(_SAYS.format(who=who) for who in ("AUTHOR", "COMMITTER"))
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
class Place:
    """What the images of this server have, and how long work on it may take."""

    root: str = "/testbed"
    setup: str = "source /opt/miniconda3/bin/activate testbed"
    """Bash that makes the repository's own Python the one that is called `python`."""
    work_s: float = 60.0
    """Wall clock of one script that prepares, makes a patch or applies one."""
    test_s: float = 60.0


async def prepared(container: Container, task: SweTask, place: Place) -> str:
    """The id of the only commit. Raises RuntimeFault."""
    script = IDENTITY + PREPARE.format(root=shlex.quote(place.root), commit=shlex.quote(task.base_commit or ""))
    done = await run_job(container, script, {}, place.work_s)
    base = done.out.get("base", b"").decode("ascii", "replace").strip()
    if done.status != 0 or not base:
        raise ImageUnfit(
            f"{place.root} in the image of {task.instance_id or task.repo} is no repository with {task.base_commit}"
            f" (exit {done.status}): {done.log}"
        )
    return base
