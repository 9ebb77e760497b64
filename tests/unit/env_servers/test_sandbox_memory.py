"""What a sandbox's processes hold: shared pages once, unnamed files, sockets that only the namespace knows, and
processes that end while one looks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from env_servers.python_tir.isolation import memory

MIB = 1 << 20
HOLD = """
import os, sys, time
x = b'x' * (40 << 20)
if os.fork() == 0: time.sleep(60)
print('up', flush=True)
time.sleep(60)
"""


@pytest.fixture
def two_processes():
    """Below this process: one that holds 40 MiB, and its fork, which shares them."""
    shell = subprocess.Popen(
        ["/bin/sh", "-c", f'"{sys.executable}" -c "$0" & wait', HOLD], stdout=subprocess.PIPE, start_new_session=True
    )
    assert shell.stdout.readline() == b"up\n"
    yield shell.pid
    os.killpg(shell.pid, 9)
    shell.wait()
    shell.stdout.close()


def test_pages_shared_by_forks_count_once(two_processes):
    descriptors = 2 * 3 * memory.PAIR_BYTES
    assert memory.used_bytes(two_processes, enough=1 << 40) > 80 * MIB
    assert 40 * MIB < memory.used_bytes(two_processes, enough=0) - descriptors < 60 * MIB


def test_the_memory_of_a_stopped_session_excludes_the_warm_interpreter(two_processes, monkeypatch):
    own = memory.private_bytes(os.getpid())
    # the host's namespace: other tests open sockets meanwhile
    monkeypatch.setattr(memory, "socket_bytes", lambda pid: 7 if pid == two_processes else 0)
    assert memory.session_bytes(two_processes, initial_bytes=1 << 40, directories=()) == 7
    assert memory.session_bytes(two_processes, initial_bytes=0, directories=()) > 80 * MIB
    assert own > 0


def test_the_largest_of_several_readings_counts_while_processes_end():
    readings = iter([(5, False), (9, False), (7, True), (99, True)])
    assert memory._steadily(os.getpid(), lambda pids: next(readings)) == 9
    endless = iter(range(1, 1000))
    assert memory._steadily(os.getpid(), lambda pids: (next(endless), False)) == memory.WALKS


def test_an_ended_process_counts_zero_and_makes_the_reading_unstable():
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert memory._upper_bound([ended.pid]) == (0, False)
    assert memory._exact([ended.pid], files=0) == (0, False)
    assert memory.private_bytes(ended.pid) == memory.socket_bytes(ended.pid) == 0


def test_an_unnamed_file_counts_in_its_file_system():
    directory = os.open("/dev/shm", os.O_RDONLY)
    try:
        for _ in range(100):  # others may free as much meanwhile
            before = memory.file_bytes(directory)
            fd = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR)
            try:
                os.write(fd, bytes(8 * MIB))
                if (more := memory.file_bytes(directory) - before) > 4 * MIB:
                    break
            finally:
                os.close(fd)
        assert more > 4 * MIB
    finally:
        os.close(directory)


def test_a_connection_counts_the_buffers_of_both_ends():
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()):
        plain = memory.socket_bytes(os.getpid())
        tuned = memory.socket_bytes(os.getpid(), tcp_bytes=10 * memory.SOCKET_BYTES)
    assert plain >= 2 * memory.SOCKET_BYTES
    assert tuned - plain >= 2 * 9 * memory.SOCKET_BYTES
    assert memory.SOCKET_BYTES <= memory.host_tcp_bytes() <= memory.MAX_TCP_BYTES
