"""Apply: a git patch onto the files in ./repo, as SkyRL does: `git apply`, else `patch --fuzz=5`. What comes of it goes
to ./result as JSON.

    {"how": "git" | "patch", "files": {path: base64}, "gone": [path], "left_out": [path], "error": null}

Only what differs from before is told. Regular files alone come back: a link, a pipe or a device that the patch makes is
left out by name, and so is what is behind one. No git directory is there: no hook, filter or attribute driver runs."""

import base64
import json
import os
import stat
import subprocess

SECONDS = 20.0
GIT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CEILING_DIRECTORIES": "/tmp"}
ENV = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", **GIT}
COMMANDS = {
    "git": ["/usr/bin/git", "apply", "--whitespace=nowarn", "../patch"],
    "patch": [
        "/usr/bin/patch", "--batch", "--fuzz=5", "-p1", "--no-backup-if-mismatch", "--reject-file=-", "-i", "../patch",
    ],
}  # fmt: skip


def main(executables):
    before = snapshot("repo")
    for path in executables:
        os.chmod(f"repo/{path}", 0o755)
    said = []
    for how, command in COMMANDS.items():
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
            return answer(error=f"{how} took more than {SECONDS:g} s")
        if done.returncode == 0:
            return told(how, before)
        said.append((done.stderr or done.stdout).decode("utf-8", "replace").strip())
    return answer(error=said[0][:500] or "git apply failed")


def told(how, before):
    after = {}
    left_out = []
    for path, mode in walk("repo"):
        if not stat.S_ISREG(mode):
            left_out.append(path)
            continue
        with open(f"repo/{path}", "rb") as f:
            after[path] = f.read()
    files = {path: base64.b64encode(content).decode() for path, content in after.items() if before.get(path) != content}
    return answer(how=how, files=files, gone=sorted(set(before) - set(after)), left_out=left_out)


def answer(**fields):
    with open("result", "w") as f:
        json.dump({"how": None, "files": {}, "gone": [], "left_out": [], "error": None, **fields}, f)


def walk(top):
    """(path below `top`, mode) of everything but directories; links are not followed."""
    for directory, names, files in os.walk(top):
        for name in [*files, *(n for n in names if os.path.islink(f"{directory}/{n}"))]:
            path = f"{directory}/{name}"
            yield os.path.relpath(path, top), os.lstat(path).st_mode


def snapshot(top):
    found = {}
    for path, _ in walk(top):
        with open(f"{top}/{path}", "rb") as f:
            found[path] = f.read()
    return found
