"""A session's copy of the repository, and the two tools at work on it. Its methods run as cells of a session's
interpreter; each prints JSON.

    open(...)              writes the files, and a git directory with one commit
    bash(...)  edit(...)   one call of a tool
    patch(...)             ends every other process of the session; what differs from the commit, as a git patch

The git directory that makes the patch is not the one to which the model can write: it is written again each
time, from memory.
"""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

GIT_S = 20.0
"""Seconds of one git command."""
DIFF = [
    "--cached",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--no-renames",
    "--full-index",
    "--src-prefix=a/",
    "--dst-prefix=b/",
]
"""Options of `git diff`."""


class Workspace:
    """The repository of one session."""

    def __init__(self, shell_type, editor_type, refused):
        self.shell_type = shell_type
        self.editor = editor_type()
        self.refused = refused

    def open(self, root, files, git, packages):
        """Write the files. `files` and `git` are mode and content by path."""
        self.root = root
        self.git = git
        for top, tree in ((root, files), (f"{root}/.git", git)):
            _write_tree(top, tree)
        env = {
            "HOME": "/tmp",
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PYTHONPATH": packages,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "OMP_NUM_THREADS": "1",
            "PAGER": "cat",
            "GIT_PAGER": "cat",
            **{
                f"GIT_{role}_{field}": value
                for role in ("AUTHOR", "COMMITTER")
                for field, value in (("NAME", "agent"), ("EMAIL", "agent@localhost"))
            },
        }
        self.env = env
        self.shell = self.shell_type(root, env)
        _print_json({})

    def bash(self, command, is_input, seconds):
        """Run a command, or send input to the running one."""
        try:
            text, code = self.shell.run(command, is_input, seconds)
        except Exception as e:
            # no process or descriptor is left, which only the session itself can have caused
            text = f"bash failed: {type(e).__name__}: {e}"
            code = 1
        _print_json({"text": text, "code": code, "directory": self.shell.directory})

    def edit(self, command, path, arguments):
        """Run a command of the editor."""
        try:
            _print_json({"text": self.editor.run(command, path, arguments)})
        except (self.refused, ValueError, MemoryError, RecursionError) as e:  # for example a path with a null byte
            _print_json({"text": f"ERROR:\n{e}", "refused": True})

    def patch(self, max_bytes):
        """Print the patch as base64, unless it has more than `max_bytes`."""
        try:
            self._patch(max_bytes)
        except subprocess.TimeoutExpired:
            _print_json({"error": f"git took more than {GIT_S:g} s", "is_late": True})
        except Exception as e:
            _print_json({"error": f"{type(e).__name__}: {e}"})

    def _patch(self, max_bytes):
        self.shell.stop()
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # everything except this process and PID 1
        for place in ("/tmp", "/dev/shm"):
            for name in os.listdir(place):
                path = f"{place}/{name}"
                if path != self.root:
                    _remove(path)
        directory = tempfile.mkdtemp(dir="/dev/shm")
        _write_tree(directory, self.git)
        command = ["/usr/bin/git", f"--git-dir={directory}", f"--work-tree={self.root}", "-c", "core.fsmonitor=false"]
        env = {
            **self.env,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_OPTIONAL_LOCKS": "0",
            "PYTHONPATH": "",
        }
        added = _git([*command, "add", "-A"], env)
        diff = _git([*command, "diff", *DIFF, "HEAD"], env) if added.returncode == 0 else added
        shutil.rmtree(directory, ignore_errors=True)
        if diff.returncode != 0:
            _print_json({"error": diff.stderr[-500:].decode("utf-8", "replace")})
        elif len(diff.stdout) > max_bytes:
            _print_json({"too_large": len(diff.stdout)})
        else:
            _print_json({"patch": base64.b64encode(diff.stdout).decode()})


def _git(command, env):
    return subprocess.run(
        command, cwd="/", env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_S, check=False
    )


def _write_tree(top, tree):
    directories = set()
    for path, (mode, content) in tree.items():
        full = f"{top}/{path}"
        parent = os.path.dirname(full)
        if parent not in directories:
            os.makedirs(parent, exist_ok=True)
            directories.add(parent)
        if mode == 0o120000:
            os.symlink(content, full)
            continue
        fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode & 0o777)
        while content:
            content = content[os.write(fd, content) :]
        os.close(fd)


def _remove(path):
    with contextlib.suppress(OSError, RecursionError):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


def _print_json(answer):
    sys.stdout.write(json.dumps(answer) + "\n")
