"""Apply a git patch to the files in ./repo as SkyRL does, with `git apply`, else `patch --fuzz=5`, and write ./result
as JSON.

    {"how": "git" | "patch", "files": {path: base64}, "executables": [path], "gone": [path], "left_out": [path],
     "error": null, "is_late": false}

Only files whose content differs from before are listed, and all executables. Only regular files come back: a link, a
pipe or a device that the patch makes is left out by name, and so is everything behind one. Links of the repository are
there, and may be removed. There is no git directory, so no hook, filter or attribute driver runs.
"""

import base64
import contextlib
import json
import os
import stat
import subprocess
from typing import Any

SECONDS = 20.0
"""Seconds of one command."""
GIT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CEILING_DIRECTORIES": "/tmp"}
ENV = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", **GIT}
COMMANDS = {
    "git": ["/usr/bin/git", "apply", "--whitespace=nowarn", "../patch"],
    "patch": [
        "/usr/bin/patch", "--batch", "--fuzz=5", "-p1", "--no-backup-if-mismatch", "--reject-file=-", "-i", "../patch",
    ],
}  # fmt: skip


def main(executables, links):
    """Apply ./patch. `executables` are the paths that are executable, `links` the targets of links by path."""
    before = snapshot("repo")
    lay_out("repo", executables, links)
    errors = []
    for name, command in COMMANDS.items():
        try:
            done = subprocess.run(
                command,
                cwd="repo",
                env=ENV,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return answer(error=f"{name} took more than {SECONDS:g} s", is_late=True)
        if done.returncode == 0:
            return answer_changes(name, before, links)
        errors.append((done.stderr or done.stdout).decode("utf-8", "replace").strip())
    return answer(error=errors[0][:500] or "git apply failed")


def lay_out(top, executables, links):
    """Give files below `top` their modes, and make the links. What stands in the place of a link stays."""
    for path in executables:
        with contextlib.suppress(OSError):
            os.chmod(f"{top}/{path}", 0o755)
    for path, target in links.items():
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(f"{top}/{path}"), exist_ok=True)
            os.symlink(target, f"{top}/{path}")


def answer_changes(command_name, before, links):
    """Write what the patch has changed."""
    after = {}
    kept = set()
    executables = []
    left_out = []
    for path, mode in walk("repo"):
        if path in links and stat.S_ISLNK(mode) and os.readlink(os.fsencode(f"repo/{path}")) == links[path]:
            kept.add(path)
            continue
        if not stat.S_ISREG(mode):
            left_out.append(path)
            continue
        if mode & 0o100:
            executables.append(path)
        with open(f"repo/{path}", "rb") as f:
            after[path] = f.read()
    files = {path: base64.b64encode(content).decode() for path, content in after.items() if before.get(path) != content}
    gone = sorted({*before, *links} - {*after, *kept})
    return answer(how=command_name, files=files, executables=executables, gone=gone, left_out=left_out)


def answer(**fields):
    """Write ./result."""
    with open("result", "w") as f:
        empty: dict[str, Any] = {
            "how": None,
            "files": {},
            "executables": [],
            "gone": [],
            "left_out": [],
            "error": None,
            "is_late": False,
        }
        json.dump({**empty, **fields}, f)


def walk(top):
    """Yield path below `top` and mode of everything except directories. Links are not followed."""
    for directory, names, files in os.walk(top):
        for name in [*files, *(n for n in names if os.path.islink(f"{directory}/{n}"))]:
            path = f"{directory}/{name}"
            yield os.path.relpath(path, top), os.lstat(path).st_mode


def snapshot(top):
    """Return the content of every file."""
    contents = {}
    for path, _ in walk(top):
        with open(f"{top}/{path}", "rb") as f:
            contents[path] = f.read()
    return contents
