"""vLLM's sockets are in a directory of the engine's process, and go with it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile

import pytest

from openrlhf_tir.engines import socket_directory
from openrlhf_tir.engines.socket_directory import LONGEST, VARIABLE, remove_socket_directory

BINDS = """
import os, socket, sys
from openrlhf_tir.engines.socket_directory import VARIABLE, remove_socket_directory, socket_directory

with socket_directory():
    socket.socket(socket.AF_UNIX).bind(os.environ[VARIABLE] + "/socket")
print("bound", flush=True)
if sys.stdin.read() == "stop":
    remove_socket_directory()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    directory = tempfile.mkdtemp(prefix="s", dir="/tmp")  # pytest's own is too long for a socket
    monkeypatch.setenv("TMPDIR", directory)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv(VARIABLE, raising=False)
    socket_directory._room.cache_clear()
    yield directory
    remove_socket_directory()
    socket_directory._room.cache_clear()
    os.rmdir(directory)


def engine() -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", BINDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "bound\n"
    return process


def test_the_sockets_of_an_engine_go_when_it_stops_and_those_of_a_killed_one_when_the_next_starts(temporary):
    stopped, killed = engine(), engine()
    assert len(os.listdir(temporary)) == 2
    stopped.communicate("stop")
    assert len(os.listdir(temporary)) == 1
    later = engine()
    assert len(os.listdir(temporary)) == 2, "the other one lives"
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    last = engine()
    assert len(os.listdir(temporary)) == 2
    for process in (later, last):
        process.communicate("stop")


def test_engines_of_one_process_share_a_directory_which_no_other_process_is_told(temporary):
    """vLLM keeps the first path that it has read."""
    paths = []
    for _ in range(2):
        with socket_directory.socket_directory():
            paths.append(os.environ[VARIABLE])
            assert os.path.isdir(paths[-1]) and os.stat(paths[-1]).st_mode & 0o777 == 0o700
        assert VARIABLE not in os.environ
        remove_socket_directory()
        assert not os.listdir(temporary)
    assert paths[0] == paths[1] and len(f"{paths[0]}/{'0' * 36}") <= 107


def test_a_temporary_directory_that_is_too_long_for_sockets_holds_none(temporary, monkeypatch):
    """vLLM would bind them there, and fail."""
    monkeypatch.setattr(tempfile, "tempdir", f"/{'t' * LONGEST}")
    with socket_directory.socket_directory():
        here = os.environ[VARIABLE]
        assert os.path.isdir(here) and len(here) <= LONGEST
    remove_socket_directory()
    assert not os.path.exists(here)


def test_a_path_of_the_users_own_is_left_to_vllm(temporary, monkeypatch):
    monkeypatch.setenv(VARIABLE, "/elsewhere")
    with socket_directory.socket_directory():
        assert os.environ[VARIABLE] == "/elsewhere"
    assert os.environ[VARIABLE] == "/elsewhere" and not os.listdir(temporary)


def test_where_nothing_can_be_locked_the_sockets_are_left_to_vllm_and_the_engine_starts(temporary, monkeypatch):
    def no_locks(fd, operation):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with socket_directory.socket_directory():
        assert VARIABLE not in os.environ and not os.listdir(temporary)
