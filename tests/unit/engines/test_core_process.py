"""vLLM's engine process as a fork of the process that starts the engine."""

from __future__ import annotations

import multiprocessing
import os
import socket
import stat

import pytest
import torch

from openrlhf_tir.engines.core_process import _Context, may_fork


@pytest.mark.parametrize(
    ("gpu", "variable", "threads", "forks"),
    [(False, "1", 1, True), (True, "1", 1, False), (False, "2", 1, False), (False, "1", 2, False)],
)
def test_only_a_process_without_cuda_and_without_a_pool_of_threads_is_forked(
    gpu, variable, threads, forks, monkeypatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert may_fork(gpu=gpu) is forks


def _report(queue: multiprocessing.Queue, number: int) -> None:
    queue.put((stat.S_ISSOCK(os.fstat(number).st_mode), os.getpid()))


def test_the_child_holds_no_socket_of_its_parent_open():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        queue = _Context().Queue()
        process = _Context().Process(target=_report, args=(queue, ours.fileno()))
        process.start()
        is_socket, child = queue.get(timeout=60)
        assert not is_socket and child == process.pid != os.getpid()
        process.join()
        ours.close()
        theirs.settimeout(60)
        assert theirs.recv(1) == b"", "the last copy of the other end is closed"


def test_the_number_of_a_socket_stays_taken_in_the_child():
    """An object of the parent's may close it later, when the number must not be a socket of the child's own."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        queue = _Context().Queue()
        process = _Context().Process(target=_opened, args=(queue, ours.fileno()))
        process.start()
        assert queue.get(timeout=60) != ours.fileno()
        process.join()


def _opened(queue: multiprocessing.Queue, number: int) -> None:
    os.fstat(number)  # raises if the number is free
    with socket.socket() as own:
        queue.put(own.fileno())
