"""BwrapSandbox against hostile and clumsy snippets. After every one the sandbox must still answer."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from env_servers.python_tir.env import judge
from env_servers.python_tir.isolation.bwrap import BwrapSandbox
from env_servers.python_tir.isolation.seccomp import filter_program
from env_servers.python_tir.isolation.supervise import MEMORY_CHECK_S
from env_servers.python_tir.limits import Limits
from env_servers.python_tir.sandbox import SandboxError

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
MIB = 1 << 20
LIMITS = Limits(code_timeout_s=60.0, start_timeout_s=60.0)
"""A snippet that ends by itself never meets them, however slow the machine is."""


@pytest.fixture
async def sandbox():
    sandbox = BwrapSandbox(LIMITS, seccomp=filter_program())
    yield sandbox
    sandbox.limits = LIMITS
    alive = await sandbox.run("print('alive')")
    await sandbox.close()
    assert alive.stdout == b"alive\n"


def with_limits(sandbox: BwrapSandbox, **changes) -> BwrapSandbox:
    sandbox.limits = replace(LIMITS, **changes)
    return sandbox


def processes_with(marker: str) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if marker.encode() in command and int(pid) != os.getpid():
            found.append(f"{pid}: {command!r}")
    return found


async def test_stdout_is_verbatim_and_separate_from_stderr(sandbox):
    e = await sandbox.run("import sys\nprint('a\\n  b')\nprint('warn', file=sys.stderr)")
    assert (e.stdout, e.stderr, e.return_code, e.killed) == (b"a\n  b\n", b"warn\n", 0, None)


async def test_unicode_in_code_and_output_is_preserved(sandbox):
    e = await sandbox.run("π = 'äß漢🙂'\nprint(π)")
    assert e.stdout.decode() == "äß漢🙂\n"


async def test_undecodable_code_is_a_model_error(sandbox):
    step = judge(await sandbox.run("print('\ud800')"))
    assert (step.outcome, step.signals["error_type"]) == ("model_error", "syntax")


async def test_undecodable_output_is_replaced(sandbox):
    step = judge(await sandbox.run("import sys; sys.stdout.buffer.write(b'\\xff!')"))
    assert step.observation == "\ufffd!"


async def test_traceback_shows_the_snippets_lines_only(sandbox):
    e = await sandbox.run("def f():\n    return 1/0\nf()")
    assert (
        e.stderr.decode() == "Traceback (most recent call last):\n"
        '  File "/tmp/main.py", line 3, in <module>\n    f()\n'
        '  File "/tmp/main.py", line 2, in f\n    return 1/0\n           ~^~\n'
        "ZeroDivisionError: division by zero\n"
    )


async def test_a_syntax_error_is_classified_and_reads_like_that_of_a_script(sandbox):
    step = judge(await sandbox.run("x = ("))
    assert step.observation == "  line 1\n    x = (\n        \nSyntaxError: '(' was never closed\n"
    assert step.signals["error_type"] == "syntax"
    assert step.signals["executed"] is False


@pytest.mark.parametrize(
    ("code", "return_code"),
    [
        ("", 0),
        ("import sys; sys.exit(3)", 3),
        ("exit()", 0),
        ("quit(7)", 7),
        ("raise SystemExit('bye')", 1),
        ("import os; os._exit(5)", 5),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.abort()", -6),
        ("raise KeyboardInterrupt", -2),
    ],
)
async def test_exit_codes(sandbox, code, return_code):
    assert (await sandbox.run(code)).return_code == return_code


@pytest.mark.slow
async def test_numpy_and_sympy_can_be_imported(sandbox):
    e = await sandbox.run("import numpy, sympy; print(numpy.arange(3).sum(), sympy.factorint(12))")
    assert e.stdout == b"3 {2: 2, 3: 1}\n"


async def test_subprocesses_threads_and_pools_work(sandbox):
    code = (
        "import subprocess, threading, multiprocessing as mp\n"
        "def f(x): return x * x\n"
        "if __name__ == '__main__':\n"
        "    print(subprocess.run(['echo', 'sub'], capture_output=True).stdout)\n"
        "    t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n"
        "    with mp.Pool(2) as p: print(p.map(f, [1, 2]))\n"
    )
    e = await sandbox.run(code)
    assert e.stdout == b"b'sub\\n'\nthread\n[1, 4]\n", e.stderr


async def test_stdin_is_empty_and_the_code_is_not_on_a_descriptor(sandbox):
    e = await sandbox.run(
        "import os, sys\nprint(repr(sys.stdin.read()), sorted(os.listdir('/proc/self/fd'))[:3],"
        " len(os.listdir('/proc/self/fd')))"
    )
    assert e.stdout == b"'' ['0', '1', '2'] 4\n"  # the fourth is the listing's own


async def test_runs_as_an_unprivileged_user_without_capabilities(sandbox):
    e = await sandbox.run(
        "print(*[l for l in open('/proc/self/status') if l.startswith(('Uid', 'CapEff', 'CapPrm', 'CapBnd',"
        " 'NoNewPrivs'))])"
    )
    fields = dict(
        line.split(":\t")
        for line in e.stdout.decode().replace(" Cap", "Cap").replace(" No", "No").splitlines()
        if line.strip()
    )
    assert "0" not in fields["Uid"].split("\t")
    assert {fields[k].strip("0") for k in ("CapEff", "CapPrm", "CapBnd")} == {""}
    assert fields["NoNewPrivs"] == "1"


@pytest.mark.parametrize(
    "path",
    [
        "/etc/shadow", "/etc/passwd", "/root/.bashrc", "/home", "/sys/kernel", "/run", "/var/log",
        "/proc/1/root/etc/shadow",
    ],
)  # fmt: skip
async def test_host_files_are_not_visible(sandbox, path):
    step = judge(
        await sandbox.run(
            f"import os; print(os.listdir('{path}') if os.path.isdir('{path}') else open('{path}').read())"
        )
    )
    assert step.outcome == "model_error"
    assert "No such file" in step.observation


async def test_a_secret_in_the_hosts_tmp_is_not_visible(sandbox):
    with tempfile.NamedTemporaryFile("w", prefix="secret-") as f:
        f.write("s3cret")
        f.flush()
        os.chmod(f.name, 0o644)
        e = await sandbox.run(
            f"import os, subprocess; print(os.path.exists({f.name!r}), os.listdir('/tmp')); open({f.name!r})"
        )
    assert e.stdout == b"False ['main.py']\n"
    assert e.return_code == 1


@pytest.mark.parametrize("path", ["/x", "/usr/x", "/dev/x", "/proc/sys/kernel/core_pattern"])
async def test_nothing_but_tmp_can_be_written(sandbox, path):
    assert (await sandbox.run(f"open('{path}', 'w')")).return_code == 1


@pytest.mark.slow
async def test_the_interpreter_cannot_be_changed(sandbox):
    e = await sandbox.run("import os, numpy; open(os.__file__, 'a')")
    assert e.return_code == 1
    e = await sandbox.run("import numpy; open(numpy.__file__, 'a')")
    assert e.return_code == 1


async def test_files_of_a_call_are_gone_at_the_next(sandbox):
    await sandbox.run("open('/tmp/left', 'w').write('secret'); open('/dev/shm/left', 'w').write('secret')")
    e = await sandbox.run("import os; print(os.listdir('/tmp'), os.listdir('/dev/shm'))")
    assert e.stdout == b"['main.py'] []\n"


async def test_calls_at_the_same_time_do_not_see_each_other(sandbox):
    spy = """
import os, time
time.sleep(0.3)
pids = sorted(p for p in os.listdir('/proc') if p.isdigit())
print(pids, [open(f'/proc/{p}/cmdline').read().count('s3cret') for p in pids], os.listdir('/tmp'))
"""
    victim = "import time; secret = 's3cret'; open('/tmp/mine', 'w').write(secret); time.sleep(0.6); print('done')"
    seen, _ = await asyncio.gather(sandbox.run(spy), sandbox.run(victim))
    assert seen.stdout == b"['1', '2'] [0, 0] ['main.py']\n"


async def test_the_network_is_not_reachable(sandbox):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = f"""
import socket
for address in (("127.0.0.1", {listener.getsockname()[1]}), ("1.1.1.1", 53)):
    try: socket.create_connection(address, timeout=1); print("open")
    except OSError: print("closed")
"""
        e = await sandbox.run(code)
    assert e.stdout == b"closed\nclosed\n"


async def test_sigint_works_although_the_server_was_started_in_the_background(sandbox):
    """A shell starts `server &` with SIGINT ignored, which children inherit."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        e = await sandbox.run("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    finally:
        signal.signal(signal.SIGINT, before)
    assert b"KeyboardInterrupt" in e.stderr


async def test_abstract_unix_sockets_of_the_host_are_not_reachable(sandbox):
    name = f"\0tir-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        e = await sandbox.run(f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})")
    assert e.return_code == 1


@pytest.mark.slow
async def test_an_endless_loop_ends_at_the_time_limit_as_a_model_error(sandbox):
    step = judge(await with_limits(sandbox, code_timeout_s=0.4).run("print('x', flush=True)\nwhile True: pass"))
    assert (step.observation, step.outcome, step.signals["error_type"]) == (
        "TimeLimitExceeded",
        "model_error",
        "time_limit",
    )
    assert step.signals["seconds"] >= 0.4


async def test_nothing_survives_the_deadline(sandbox):
    marker = f"survivor-{os.getpid()}-a"
    daemon = f"""
import subprocess, time
subprocess.Popen(["setsid", "python3", "-c", "import time; time.sleep(600)", "{marker}"], start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""
    for code_timeout_s in (1.0, 5.0, 60.0):  # as long as it takes to start the survivor
        e = await with_limits(sandbox, code_timeout_s=code_timeout_s).run(daemon)
        assert e.killed == "time_limit" and processes_with(marker) == []
        if e.stdout:
            break
    assert e.stdout == b"up\n"


async def test_nothing_survives_the_programs_own_end(sandbox):
    marker = f"survivor-{os.getpid()}-b"
    code = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv("/usr/bin/sleep", ["{marker}", "600"])
    os._exit(0)
time.sleep(0.3)
print("done")
"""
    e = await sandbox.run(code)
    assert (e.stdout, e.return_code) == (b"done\n", 0)
    assert processes_with(marker) == []


async def test_nothing_survives_a_cancelled_call(sandbox):
    marker = f"survivor-{os.getpid()}-c"
    call = asyncio.create_task(sandbox.run(f"import os; os.execv('/usr/bin/sleep', ['{marker}', '600'])"))
    while not processes_with(marker):
        await asyncio.sleep(0.02)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert processes_with(marker) == []


@pytest.mark.slow
async def test_a_snippet_that_ignores_signals_is_killed(sandbox):
    code = (
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError,"
        " ValueError): pass\nwhile True: pass"
    )
    assert (await with_limits(sandbox, code_timeout_s=0.4).run(code)).killed == "time_limit"


async def test_a_snippet_cannot_kill_its_init(sandbox):
    e = await sandbox.run("import os\nfor s in (2, 9, 15): os.kill(1, s)\nprint('still here')")
    assert e.stdout == b"still here\n"


@pytest.mark.slow
async def test_a_fork_bomb_ends_at_the_process_limit(sandbox):
    e = await with_limits(sandbox, code_timeout_s=0.4).run(
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    )
    assert e.killed == "time_limit"
    counted = """
import os, time
n = 0
try:
    while n < 500:
        if os.fork() == 0: time.sleep(60)
        n += 1
except BlockingIOError: print(n < 64, flush=True)
os._exit(0)
"""
    e = await with_limits(sandbox).run(counted)
    assert e.stdout == b"True\n"


async def test_one_process_cannot_exceed_the_memory_limit(sandbox):
    step = judge(await with_limits(sandbox, memory_bytes=256 * MIB).run("x = bytearray(1 << 30)"))
    assert (step.outcome, step.signals["error_type"]) == ("model_error", "memory")
    assert step.observation.endswith("MemoryError\n")


@pytest.mark.slow
async def test_many_processes_together_cannot_exceed_the_memory_limit(sandbox):
    code = """
import os, time
for i in range(8):
    if os.fork() == 0:
        x = b"x" * (60 << 20)
        time.sleep(60)
time.sleep(60)
"""
    step = judge(await with_limits(sandbox, memory_bytes=200 * MIB).run(code))
    assert (step.observation, step.signals["error_type"]) == ("MemoryLimitExceeded", "memory")


async def test_large_output_is_cut_and_the_program_runs_to_its_end(sandbox):
    e = await sandbox.run("print('x' * 1_000_000)\nprint('end')")
    assert (len(e.stdout), e.stdout_truncated, e.return_code) == (LIMITS.keep_bytes, True, 0)


async def test_a_flood_of_stdout_ends_the_program(sandbox):
    step = judge(await with_limits(sandbox, code_timeout_s=600.0).run("while True: print('y' * 10_000)"))
    assert (step.outcome, step.signals["error_type"], step.signals["stdout_truncated"]) == (
        "model_error",
        "output_flood",
        True,
    )


async def test_a_flood_of_stderr_ends_the_program(sandbox):
    e = await sandbox.run("import sys\nwhile True: sys.stderr.write('y' * 10_000)")
    assert e.killed == "output_flood"


@pytest.mark.parametrize("directory", ["/tmp", "/dev/shm"])
async def test_disk_is_limited(sandbox, directory):
    code = (
        f"try:\n    for i in range(9): open('{directory}/%d' % i, 'wb').write(bytes(16 << 20))\nexcept OSError as e:"
        " print(e.errno)"
    )
    assert (await sandbox.run(code)).stdout == b"28\n"  # ENOSPC


async def test_one_file_is_limited(sandbox):
    e = await with_limits(sandbox, file_bytes=1 * MIB).run(
        "try: open('/tmp/x', 'wb').write(bytes(2 << 20))\nexcept OSError as e: print(e.errno)"
    )
    assert e.stdout == b"27\n"  # EFBIG


async def test_a_deep_recursion_is_a_model_error(sandbox):
    step = judge(await sandbox.run("def f(): f()\nf()"))
    assert step.outcome == "model_error"
    assert "RecursionError" in step.observation


async def test_code_that_breaks_the_compiler_is_a_model_error(sandbox):
    for code in ("(" * 5000, "-" * 200_000 + "1", "x" * 1_000_000, "\0"):
        assert judge(await sandbox.run(code)).outcome == "model_error"


async def test_the_same_snippet_prints_the_same_set_order(sandbox):
    first, second = [await sandbox.run("print({'a', 'b', 'c', 'd', 'e'})") for _ in range(2)]
    assert first.stdout == second.stdout


async def test_a_broken_bubblewrap_is_a_sandbox_error(sandbox):
    working = sandbox._fixed
    sandbox._fixed = [working[0], "--ro-bind", "/nonexistent", "/x", *working[1:]]
    with pytest.raises(SandboxError, match="nonexistent"):
        await sandbox.run("print(1)")
    sandbox._fixed = working


async def test_an_interpreter_that_does_not_start_is_a_sandbox_error(sandbox):
    working = sandbox._fixed
    sandbox._fixed = ["/bin/sh", "-c", "exec sleep 60"]
    with pytest.raises(SandboxError, match=r" 0\.2 s"):
        await with_limits(sandbox, start_timeout_s=0.2).run("print(1)")
    sandbox._fixed = working


@pytest.mark.slow
async def test_no_descriptor_and_no_child_is_left_after_many_calls(sandbox):
    def children() -> list[str]:
        return sorted(
            pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()
        )

    await sandbox.run("print(1)")
    before, children_before = len(os.listdir("/proc/self/fd")), children()
    await asyncio.gather(*[sandbox.run(code) for code in ["print(1)", "1/0", "while True: print('y' * 9999)"] * 4])
    assert len(os.listdir("/proc/self/fd")) == before
    assert children() == children_before


async def test_threads_exit_handlers_and_destructors_run_as_in_a_script(sandbox):
    code = (
        "import atexit, sys, threading, time\n"
        "class Loud:\n    def __del__(self):"
        " print('deleted')\nkept = Loud()\n"
        "atexit.register(print, 'atexit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\n"
        "sys.stdout.write('main, no newline; ')\n"
    )
    assert (await sandbox.run(code)).stdout == b"main, no newline; thread\natexit\ndeleted\n"


DENIED_CALLS = """
import ctypes, socket
libc = ctypes.CDLL(None, use_errno=True)
def errno(name, *args):
    ctypes.set_errno(0)
    return name, getattr(libc, name)(*args) == -1 and ctypes.get_errno()
print(errno("unshare", 0x10000000), errno("ptrace", 0, 0, 0, 0),
      errno("keyctl", 0) if hasattr(libc, "keyctl") else ("keyctl", 1),
      errno("shmget", 0, 4096, 0o1600), errno("syscall", 425, 1, 0), errno("syscall", 319, b"x", 0),
      errno("mount", b"none", b"/tmp", b"tmpfs", 0, 0))
RAW, MPTCP, SCTP = socket.SOCK_RAW | socket.SOCK_CLOEXEC, 262, 132
strange = (16, 3, 0), (17, 3, 0), (40, 1, 0), (1 << 32 | 16, 3, 0)
for family, kind, protocol in (*strange, (2, RAW, 1), (10, RAW, 58), (2, 2, 1), (2, 1, MPTCP), (10, 1, SCTP)):
    if libc.syscall(41, *map(ctypes.c_long, (family, kind, protocol))) != -1: print("open", family, kind, protocol)
a, b = socket.socketpair(); a.send(b"unix works"); print(b.recv(99))
"""


async def test_system_calls_beyond_the_namespaces_are_refused(sandbox):
    e = await sandbox.run(DENIED_CALLS)
    # 1 is EPERM, 38 ENOSYS; 425 is io_uring_setup, 319 memfd_create on x86-64
    calls = "('unshare', 1) ('ptrace', 1) ('keyctl', 1) ('shmget', 1) ('syscall', 38) ('syscall', 38) ('mount', 1)"
    assert e.stdout.decode() == f"{calls}\nb'unix works'\n", e.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", ["open(name, 'w').close()", "os.mkdir(name)", "os.link('first', name)", "os.symlink('x', name)"]
)
@pytest.mark.parametrize("directory", ["/tmp", "/dev/shm"])
async def test_too_many_small_files_end_the_call(sandbox, directory, make):
    """What tmpfs would take is a share of the host's memory: millions. A warm slot has the same bound."""
    code = (
        f"import os, time\nos.chdir({directory!r})\nopen('first', 'w').close()\nfor i in range(%d):\n    name ="
        f" f'x{{i}}'\n    {make}\n"
    )
    few = with_limits(sandbox, file_bytes=1 << 20, code_timeout_s=60.0)
    assert few.limits.files == 256
    e = await few.run(code % 300 + "time.sleep(600)")
    assert e.killed == "memory"
    e = await few.run(code % 200 + f"time.sleep({3 * MEMORY_CHECK_S})\nprint('here')")
    assert (e.stdout, e.killed) == (b"here\n", None)
