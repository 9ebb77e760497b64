"""WarmSandbox as an object: what it leaves behind, what it replaces, and whose fault a failure is."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
from dataclasses import replace

import pytest

from env_servers.python_tir.isolation.seccomp import filter_program
from env_servers.python_tir.isolation.selftest import prove_isolation
from env_servers.python_tir.isolation.tree import descendants
from env_servers.python_tir.limits import Limits
from env_servers.python_tir.sandbox import SandboxError, Snippet
from env_servers.python_tir.warm.call import Call
from env_servers.python_tir.warm.sandbox import WarmSandbox
from env_servers.python_tir.warm.slot import Slot

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.fixture(scope="module")
def warm():
    sandbox = WarmSandbox(Limits(code_timeout_s=60.0), slots=1, seccomp=filter_program())
    yield sandbox
    asyncio.run(sandbox.close())


@pytest.mark.slow
async def test_a_warm_sandbox_passes_the_self_test_and_serves_other_event_loops(warm):
    await prove_isolation(warm)
    loops = [await asyncio.to_thread(lambda: asyncio.run(warm.run("print(1)"))) for _ in range(2)]
    assert [e.stdout for e in loops] == [b"1\n", b"1\n"]


async def test_a_cancelled_call_ends_before_the_next_begins(warm):
    await warm.run("")
    slot = warm._light.slots[0]
    call = asyncio.create_task(warm.run("import time; time.sleep(60)"))
    while not list(descendants(slot.pid)):
        await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert list(descendants(slot.pid)) == []
    assert (await warm.run("print(1)")).stdout == b"1\n"
    assert warm._light.slots[0] is slot  # it was asked to end the call, not killed


async def test_a_call_cancelled_twice_does_not_spoil_its_successor(warm):
    """A missed deadline and then the close of its session, or a task group: whoever cancels may do so again while the
    call is being ended."""
    for _ in range(10):
        call = asyncio.create_task(warm.run("import time; time.sleep(60)"))
        await asyncio.sleep(0.05)
        for _ in range(3):
            call.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await call
        after = await warm.run("print(1)")
        assert (after.stdout, after.return_code, after.killed) == (b"1\n", 0, None)


async def test_a_call_that_waits_for_a_slot_can_be_cancelled(warm):
    running = asyncio.create_task(warm.run("import time; time.sleep(0.3); print('done')"))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(warm.run("print('never')"))
    await asyncio.sleep(0.05)
    waiting.cancel()
    assert (await running).stdout == b"done\n"
    assert (await warm.run("print(2)")).stdout == b"2\n"


async def test_a_dead_slot_is_a_sandbox_error_and_is_replaced(warm):
    await warm.run("")
    call = asyncio.create_task(warm.run("import time; time.sleep(60)"))
    while not list(descendants(warm._light.slots[0].pid)):
        await asyncio.sleep(0.01)
    slot = warm._light.slots[0]
    os.kill(slot.pid, signal.SIGKILL)
    with pytest.raises(SandboxError):
        await call
    assert (await warm.run("print(1)")).stdout == b"1\n"
    assert warm._light.slots[0] is not slot


@pytest.mark.slow
async def test_a_slot_that_hangs_past_the_deadline_is_a_time_limit_and_is_replaced(warm, monkeypatch):
    await warm.run("")
    slot = warm._light.slots[0]
    os.kill(slot.pid, signal.SIGSTOP)
    limits = replace(warm.limits, code_timeout_s=0.1, start_timeout_s=0.1)
    with monkeypatch.context() as patched:
        patched.setattr("env_servers.python_tir.warm.call.ANSWER_S", 0.2)
        e = await warm.execute(Snippet("print(1)"), limits)
    assert e.killed == "time_limit"
    assert (await warm.run("print(2)")).stdout == b"2\n"
    assert warm._light.slots[0] is not slot


async def test_a_slot_whose_files_cannot_be_deleted_is_replaced(warm):
    await warm.run("")
    slot = warm._light.slots[0]
    await warm.run("import os\nfor i in range(1500):\n    os.mkdir('d'); os.chdir('d')")
    assert (await warm.run("import os; print(os.listdir('/tmp'))")).stdout == b"['main.py']\n"
    assert warm._light.slots[0] is not slot


IN_FLIGHT = """
import os, socket
def gone(i):
    fd = os.open(f"/tmp/{i}", os.O_RDWR | os.O_CREAT)
    os.write(fd, bytes(9 << 20))
    os.unlink(f"/tmp/{i}")
    return fd
a, b = socket.socketpair()
socket.send_fds(a, [b"x"], [*map(gone, range(6)), a.fileno(), b.fileno()])
socket.send_fds(b, [b"x"], [a.fileno(), b.fileno()])
"""
FILL = "print(sum(open(f'/tmp/{i}', 'wb').write(bytes(8 << 20)) for i in range(7)))"


@pytest.mark.slow
async def test_unnamed_files_in_unread_messages_are_gone_at_the_next_call(warm):
    for _ in range(4):
        assert (await warm.run(IN_FLIGHT)).return_code == 0
        after = await warm.run(FILL)
        assert (after.stdout, after.return_code) == (b"58720256\n", 0), after.stderr


def exists(name: str, directory: int) -> bool:
    try:
        os.stat(name, dir_fd=directory)
    except FileNotFoundError:
        return False
    return True


async def test_a_slot_whose_file_system_is_not_empty_is_replaced(warm):
    """A file of the call that is still open elsewhere when it ends: its name can be removed, its blocks are in use."""
    await warm.run("")
    slot = warm._light.slots[0]
    call = asyncio.create_task(
        warm.run(
            "import os, time\nopen('/tmp/kept', 'w').write('x')\nos.mkdir('/tmp/there', 0o777)\n"
            "while os.path.exists('/tmp/there'): time.sleep(0.01)"
        )
    )
    while not exists("there", slot.directories[0]):
        await asyncio.sleep(0.01)
    held = os.open("kept", os.O_RDONLY, dir_fd=slot.directories[0])
    os.rmdir("there", dir_fd=slot.directories[0])
    try:
        await call
    finally:
        os.close(held)
    assert not slot.usable
    await warm.run("")
    assert warm._light.slots[0] is not slot


TALK = """
import socket, threading
def answer():
    connection, _ = server.accept()
    connection.sendall(connection.recv(99).upper())
    connection.close()
server = socket.create_server((HOST, 8765), family=FAMILY)
thread = threading.Thread(target=answer)
thread.start()
client = socket.create_connection((HOST, 8765))
client.sendall(b"hello")
print(client.recv(99))
thread.join()
"""
UDP = (
    "import socket\ns = socket.socket(2, 2)\ns.bind(('127.0.0.1', 0))\ns.sendto(b'udp',"
    " s.getsockname())\nprint(s.recv(9))"
)
HTTP = """
import http.server, threading, urllib.request
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8765), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen("http://127.0.0.1:8765/main.py").status)
"""
ASYNCIO = """
import asyncio
async def answer(reader, writer):
    writer.write(await reader.readline())
    writer.close()
async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 8765)
    reader, writer = await asyncio.open_connection("127.0.0.1", 8765)
    writer.write(b"line\\n")
    print(await reader.read())
asyncio.run(main())
"""
LOOPBACK = [
    (f"HOST, FAMILY = '127.0.0.1', 2\n{TALK}", b"b'HELLO'\n"),
    (f"HOST, FAMILY = '::1', 10\n{TALK}", b"b'HELLO'\n"),
    (UDP, b"b'udp'\n"),
    (HTTP, b"200\n"),
    (ASYNCIO, b"b'line\\n'\n"),
]


@pytest.mark.parametrize(("code", "printed"), LOOPBACK)
async def test_a_snippet_can_use_localhost_and_leaves_no_socket_to_the_next(warm, code, printed):
    for _ in range(2):  # the same port again at once
        e = await warm.run(code)
        assert (e.stdout, e.return_code) == (printed, 0), e.stderr
        look = await warm.run(
            "print(open('/proc/net/sockstat').read().split()[2], len(open('/proc/net/tcp').readlines()))"
        )
        assert look.stdout == b"0 1\n"


async def test_flags_and_owner_of_standard_input_are_reset_between_calls(warm):
    code = (
        "import fcntl, os\nprint(os.get_blocking(0), fcntl.fcntl(0, fcntl.F_GETOWN))\nos.set_blocking(0,"
        " False)\nfcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())"
    )
    assert [(await warm.run(code)).stdout for _ in range(2)] == [b"True 0\n"] * 2


async def test_random_numbers_differ_from_call_to_call(warm):
    code = "import random, numpy, sympy.core.random as s; print(random.random(), numpy.random.rand(), s.random())"
    first, second = (await warm.run(code)).stdout.split(), (await warm.run(code)).stdout.split()
    assert all(a != b for a, b in zip(first, second, strict=True))


async def test_no_descriptor_and_no_child_is_left_after_many_calls(warm):
    await warm.run("print(1)")
    before = len(os.listdir("/proc/self/fd"))
    for code in ["print(1)", "1/0", "while True: print('y' * 9999)", "import os; os.system('setsid sleep 99 &')"] * 3:
        await warm.run(code)
    assert len(os.listdir("/proc/self/fd")) == before
    assert list(descendants(warm._light.slots[0].pid)) == []


async def test_a_snippet_with_a_tiny_time_limit_exceeds_its_own_limit(warm):
    """Its clock begins when it is up, so that a fork on a busy host costs it nothing, and no limit is too small to be
    the caller's own."""
    for _ in range(10):
        e = await warm.execute(Snippet("while True: pass"), replace(warm.limits, code_timeout_s=0.001))
        assert (e.killed, e.return_code) == ("time_limit", None)


async def test_a_snippet_that_does_not_start_in_time_is_the_hosts_fault_for_any_limit(warm, monkeypatch):
    """No time-out is short enough for a host that is quick: the slot's answer is that of one that was late."""
    taken = Call._on_reply

    def late(call: Call) -> None:
        taken(call)
        call.reply[2:4] = [b"time", b"-"]

    with monkeypatch.context() as patched:
        patched.setattr(Call, "_on_reply", late)
        with pytest.raises(SandboxError, match=rf"\b{warm.limits.start_timeout_s:g}\b"):
            await warm.execute(Snippet("print(1)"), warm.limits)
    assert (await warm.run("print(1)")).stdout == b"1\n", "by a new slot"


async def test_the_time_limit_of_a_snippet_does_not_include_its_start(warm):
    async with asyncio.timeout(300):
        limits = replace(warm.limits, code_timeout_s=0.3, start_timeout_s=3600.0)
        assert (await warm.execute(Snippet("while True: pass"), limits)).killed == "time_limit"


def test_a_slot_waits_for_the_start_of_a_child_separately_from_the_snippets_time():
    """A child that says nothing is late; one that has said that it is up has the snippet's seconds."""
    ours, theirs = socket.socketpair()
    report_r, report_w = os.pipe()
    with ours, theirs, subprocess.Popen(["sleep", "600"]) as child:
        slot = Slot.__new__(Slot)
        slot.socket = ours
        try:
            assert slot._watch(child.pid, report_r, 3600.0, 0.0) == (b"time", b"")
            os.write(report_w, b"R")
            assert slot._watch(child.pid, report_r, 0.0, 3600.0) == (b"time", b"R")
        finally:
            child.kill()
            os.close(report_r)
            os.close(report_w)
