"""The isolation level that /health reports: with and without user namespaces, with and without root."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from env_servers.python_tir.__main__ import main
from env_servers.python_tir.isolation.levels import LANDLOCK
from openrlhf_tir.machine.namespaces import PROC_REMEDY, namespace_remedy

from ...ordinary import long_except
from ..env_process import Http, env_server
from ..unprivileged import as_nobody, reachable_python

pytestmark = [
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]
PYTHON = "env_servers.python_tir"
NO_NAMESPACES = "echo 'bwrap: No permissions to create new namespace' >&2; exit 1"
NO_PROC = (
    'case " $* " in *" --proc "*) echo "bwrap: Can\'t mount proc on /newroot/proc: Operation not permitted" >&2;'
    " exit 1;; *) exec"
    f' {shutil.which("bwrap")} "$@";; esac'
)


@pytest.fixture
def open_dir():
    """A directory that every user may enter and write; pytest's own is for its user alone."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o777)
        yield Path(path)


def with_bwrap(directory: Path, script: str) -> dict[str, str]:
    """An environment in which `bwrap` is this shell script."""
    fake = directory / "bwrap"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    return {"PATH": f"{directory}:{os.environ['PATH']}"}


async def level(http: Http) -> str:
    return (await http.send("GET", "/health"))[1]["isolation"]


async def say(http: Http, session: str, step_id: int, code: str) -> dict:
    return (await http.step(session, step_id, code))[1]


@pytest.mark.slow
@pytest.mark.extended
async def test_a_server_of_an_unprivileged_user_isolates(open_dir):
    flags = ["--stateful", "--no-languages"]
    with env_server(PYTHON, open_dir, *flags, prefix=as_nobody(open_dir)) as (url, process):
        assert Path(f"/proc/{process.pid}").stat().st_uid != 0
        async with Http(url) as http:
            assert (await level(http)).startswith("bwrap")
            session, once = await http.open(), await http.open({"stateful": False})
            assert (await say(http, session, 0, "x = 6"))["outcome"] == "ok"
            assert (await say(http, session, 1, "print(x * 7)"))["observation"] == "42\n"
            reads = await say(http, once, 0, "import os; print(os.getuid() != 0, os.path.exists('/etc/passwd'))")
            assert reads["observation"] == "True False\n"


OPEN_DESCRIPTORS = """
import os
def is_open(fd):
    try: return bool(os.fstat(fd))
    except OSError: return False
print("open:", [fd for fd in range(3, 256) if is_open(fd)])
"""
COUNT = """
import os, time
n = 0
try:
    while n < 500:
        if os.fork() == 0:
            os.setsid()
            time.sleep(60)
        n += 1
except BlockingIOError: print(32 <= n <= 64, n, flush=True)
os._exit(0)
"""
"""No more processes than the limit, and most of it: what other servers on this machine start under the same user
meanwhile counts for the kernel too."""
TRIES = 5
ATTACKS = [
    (COUNT, "True"),
    ("import os\nwhile True:\n    try: os.fork() == 0 and os.setsid()\n    except OSError: pass", "LimitExceeded"),
    ("import os; os._exit = None; print('hello')", "hello"),
    ("import socket; socket.socket()", "PermissionError"),
    ("import mmap; mmap.mmap(-1, 1 << 20)", "PermissionError"),
    ("open('/etc/passwd').read()", "PermissionError"),
    ("import os; os.listdir('/proc')", "PermissionError"),
    ("open('/tmp/elsewhere', 'w')", "PermissionError"),
    ("import os; os.chmod('/usr', 0o777)", "PermissionError"),
    ("import os; os.utime('/usr')", "PermissionError"),
    ("import socket; socket.socket(socket.AF_UNIX)", "PermissionError"),
    ("import os; os.kill(os.getppid(), 9)", "PermissionError"),
    ("import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)", "PermissionError"),
    ("import os\nos.link('/usr/bin/env', 'mine')", "PermissionError"),
    (OPEN_DESCRIPTORS, "open: []"),
    ("while True: pass", "TimeLimitExceeded"),
    ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", "LimitExceeded"),
]


@pytest.mark.slow
@pytest.mark.parametrize("user", long_except({"nobody"}, ["nobody", "root"]))
@pytest.mark.extended
async def test_without_user_namespaces_landlock_confines_with_a_warning(open_dir, user):
    if user == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    prefix = as_nobody(open_dir) if user == "nobody" else reachable_python(open_dir)
    environment = with_bwrap(open_dir, NO_NAMESPACES)
    marker = f"31536{os.getpid()}"
    with env_server(PYTHON, open_dir, "--code-timeout", "1", env=environment, prefix=prefix) as (url, process):
        async with Http(url) as http:
            assert await level(http) == "landlock+seccomp"
            session = await http.open()
            for attack, (code, says) in enumerate(ATTACKS):
                for attempt in range(TRIES):
                    shown = (await say(http, session, TRIES * attack + attempt, code))["observation"]
                    # a machine so busy that a snippet does not come to its end within its time says nothing of it
                    if says in shown or "TimeLimitExceeded" not in shown:
                        break
                assert says in shown, code
            survive = (
                f"import subprocess\nfor _ in range(3): subprocess.Popen(['sleep', '{marker}'],"
                " start_new_session=True)\nprint('up', flush=True)\n"
            )
            for step_id, end in enumerate(("", "while True: pass", "import os; os.abort()"), 1000):
                assert (await say(http, session, step_id, survive + end))["outcome"] in ("ok", "model_error")
                assert subprocess.run(["pgrep", "-f", f"sleep {marker}"], capture_output=True).stdout == b""
            writes = (
                "open('a', 'w').write('mine'); print(open('a').read()); import os, numpy;"
                " print(os.getuid() != 0, os.listdir('.'))"
            )
            assert (await http.unless_late(session, 2000, writes))["observation"] == "mine\nTrue ['main.py', 'a']\n"
            cancelled = asyncio.create_task(http.step(session, 3000, survive + "while True: pass", deadline_s=0.5))
            assert (await cancelled)[1]["outcome"] == "timeout"
            await http.until_running(0)
            assert subprocess.run(["pgrep", "-f", f"sleep {marker}"], capture_output=True).stdout == b""
        process.terminate()
        said = process.stderr.read()
    assert LANDLOCK.splitlines()[0] in said
    assert namespace_remedy() in said


@pytest.mark.slow
async def test_in_a_container_that_masks_proc_only_proc_is_missing(open_dir):
    with env_server(PYTHON, open_dir, env=with_bwrap(open_dir, NO_PROC)) as (url, process):
        async with Http(url) as http:
            assert (await level(http)).endswith(", no /proc")
            code = "import os; print(os.path.exists('/etc/passwd'), os.path.exists('/proc/self'))"
            assert (await say(http, await http.open(), 0, code))["observation"] == "False False\n"
        process.terminate()
        said = process.stderr.read()
    assert PROC_REMEDY in said and "userns" not in said, "the remedy is that of the fault"


@pytest.mark.parametrize(
    ("bwrap", "remedy"),
    [
        (None, "apt-get"),
        (NO_NAMESPACES, namespace_remedy()),
        ("shift $(($# - 1)); exec /usr/bin/true", "--isolation none"),
    ],
)
def test_isolation_bwrap_without_namespaces_is_refused_with_the_remedy(open_dir, monkeypatch, bwrap, remedy):
    if bwrap is not None:
        with_bwrap(open_dir, bwrap)
    monkeypatch.setenv("PATH", str(open_dir))
    monkeypatch.setattr(sys, "argv", ["python_tir", "--isolation", "bwrap"])
    with pytest.raises(SystemExit, match=r"^python_tir ") as end:
        main()
    assert remedy in str(end.value)


def test_sessions_with_state_are_refused_without_warm_workers(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["python_tir", "--isolation", "none", "--stateful", "--no-languages"])
    with pytest.raises(SystemExit, match="--stateful"):
        main()
