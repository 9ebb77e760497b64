"""What a snippet could write where its files are handed back is checked, and what a call may ask for is bounded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from env_servers.python_tir.env import judge
from env_servers.python_tir.fusion_backend import execution_of
from env_servers.python_tir.isolation.job import unpack
from env_servers.python_tir.limits import Limits
from env_servers.python_tir.run_code import CommandRunResult, RunCodeReply, command_result, parse_run_status
from env_servers.python_tir.sandbox import FETCH_BYTES, Execution, SandboxError


@pytest.fixture
def unpacked():
    fd = os.memfd_create("test")

    def write_and_unpack(data: bytes, names: list[str]) -> dict[str, bytes]:
        os.pwrite(fd, data, 0)
        return unpack(fd, names).files

    yield write_and_unpack
    os.close(fd)


def size(n: int) -> bytes:
    return n.to_bytes(8, "little", signed=True)


def test_files_are_read_in_the_requested_order_without_missing_ones(unpacked):
    assert unpacked(size(2) + b"hi" + size(-1) + size(0), ["a", "b", "c"]) == {"a": b"hi", "c": b""}


@pytest.mark.parametrize(
    ("data", "files"),
    [
        (b"", {}),
        (b"junk", {}),
        (size(1 << 62) + b"x", {}),
        (size(1) + b"x" + size(5) + b"cut", {"a": b"x"}),
        (size(-(1 << 62)) + size(1) + b"y", {"b": b"y"}),
        (size(1) + b"x" + size(1) + b"y" + b"more than was asked for", {"a": b"x", "b": b"y"}),
    ],
)
def test_a_forged_or_broken_trailer_yields_only_its_bytes(unpacked, data, files):
    assert unpacked(data, ["a", "b"]) == files


def test_a_file_beyond_the_limit_is_named_with_its_size_and_later_files_arrive():
    fd = os.memfd_create("test")
    os.pwrite(fd, size(-2 - 77) + size(1) + b"y", 0)
    assert unpack(fd, ["big", "b"]) == ({"b": b"y"}, {"big": 77})
    os.close(fd)


def test_a_copy_that_the_end_of_the_runner_cuts_off_is_no_file(tmp_path):
    """The runner dies behind the first of three MiB."""
    (tmp_path / "f").write_bytes(bytes(3 << 20))
    fd = os.memfd_create("test")
    program = f"""
import os
from pathlib import Path
from env_servers.python_tir.isolation import job
runner = {{"__name__": "runner"}}
exec(job.compiled(Path(job.__file__).with_name("runner.py")), runner)
read = os.read
left = [1 << 20]
os.read = lambda *args: read(*args) if left and left.pop() else os._exit(9)
runner["stay_behind"]([1 << 30, "f"], {fd}, os.dup(2))
os._exit(0)
"""
    died = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, pass_fds=[fd], timeout=300)
    assert died.returncode == 9 and os.fstat(fd).st_size == 8 + (1 << 20)
    assert unpack(fd, ["f"]) == ({}, {})
    os.close(fd)


def test_no_more_than_the_limit_is_read(unpacked):
    assert unpacked(size(FETCH_BYTES) + bytes(FETCH_BYTES) + size(1) + b"x", ["a", "b"]) == {"a": bytes(FETCH_BYTES)}


def test_a_call_may_take_longer_and_print_more_but_never_more_memory():
    limits = Limits(code_timeout_s=5.0, memory_bytes=1000, keep_bytes=10)
    assert limits.for_call(None, None, None) is limits
    raised_limits = limits.for_call(60.0, 5000, 99)
    assert (raised_limits.code_timeout_s, raised_limits.memory_bytes, raised_limits.keep_bytes) == (60.0, 1000, 99)
    assert limits.for_call(None, 200, None).memory_bytes == 200


def read(status: str, /, **result: object) -> Execution:
    """Return what the client of a SandboxFusion server reads of its reply."""
    return execution_of(RunCodeReply(status=status, message="", run_result=result), Limits(), "http://there")


@pytest.mark.parametrize("killed", ["memory", "output_flood", "time_limit", None])
def test_the_reason_why_an_execution_ended_survives_the_api(killed):
    e = Execution(b"out", b"err", None if killed else 1, 0.5, killed=killed)
    back = read("Failed", **CommandRunResult.model_validate_json(command_result(e).model_dump_json()).model_dump())
    assert (back.killed, back.stdout, back.return_code, back.seconds) == (killed, b"out", e.return_code, 0.5)
    assert parse_run_status(None, command_result(e)) == ("Failed", "")


@pytest.mark.parametrize(
    ("stderr", "compiled"),
    [
        ("  File \"/tmp/main.py\", line 1\n    x = (\n        ^\nSyntaxError: '(' was never closed\n", False),
        ('Traceback (most recent call last):\n  File "/tmp/main.py", line 1, in <module>\nSyntaxError: raised\n', True),
        ("ValueError: no\n", True),
        ("", True),
    ],
)
def test_a_syntax_error_without_a_traceback_did_not_compile(stderr, compiled):
    assert read("Failed", status="Finished", return_code=1, stderr=stderr).compiled is compiled


@pytest.mark.parametrize(("status", "outcome", "text"), [("Success", "ok", "1\n"), ("Failed", "model_error", "e\n")])
def test_without_a_return_code_the_status_says_whether_the_code_failed(status, outcome, text):
    step = judge(read(status, status="Finished", stdout="1\n", stderr="e\n"))
    assert (step.outcome, step.observation) == (outcome, text)


@pytest.mark.parametrize("status", ["Success", "Failed", "SandboxError"])
def test_a_command_that_the_server_could_not_run_is_its_failure_whatever_its_status(status):
    with pytest.raises(SandboxError, match="http://there failed: no fork"):
        read(status, status="Error", stderr="no fork")
