"""A server does not start where no patch could get a reward."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from env_servers.python_tir.sandbox import SandboxError
from env_servers.swe import start
from env_servers.swe.env import LIMITS
from env_servers.swe.suite import Outcome

TEST = "test_start.py::test_start"


def test_programs_that_a_session_does_not_see_do_not_count_as_installed(monkeypatch):
    """Git of another directory, as an environment of conda has it, would leave every session without a patch."""
    monkeypatch.setattr(start, "PROGRAMS", ("/usr/bin/git-of-nowhere",))
    with pytest.raises(SandboxError, match=r"/usr/bin/git-of-nowhere\b.*`apt-get .*git-of-nowhere`"):
        start.new_sandbox(evaluations=1)


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (Outcome({TEST: "passed"}), None),
        (Outcome({}, "no_report"), r"\(no_report\).*`python -m pytest`"),
        (Outcome({TEST: "failed"}), r"\(ended\).*`python -m pytest`"),
        (Outcome({}, "time_limit"), f" {start.TEST_S:g} s\\b"),
    ],
)
def test_a_server_starts_only_where_an_empty_test_passes(monkeypatch, outcome, message):
    closed = []

    async def prove(sandbox):
        return sandbox

    async def run(*args):
        return outcome

    async def close():
        closed.append(True)

    monkeypatch.setattr(start, "new_sandbox", lambda *args, **options: SimpleNamespace(close=close))
    monkeypatch.setattr(start, "prove_isolation", prove)
    monkeypatch.setattr(start, "run_inside", run)
    try:
        start.proved_sandbox(LIMITS, evaluations=1)
        error = ""
    except SandboxError as e:
        error = str(e)
    assert bool(error) == bool(closed) == bool(message) and re.search(message or "", error)
