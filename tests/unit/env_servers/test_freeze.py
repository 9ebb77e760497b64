"""The freezer of a session on a machine whose clock runs on while the tracer has no core. No process is traced here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from env_servers.python_tir.warm import freeze


@pytest.fixture
def stalled(monkeypatch):
    """Every look comes 5 s after the one before it; the session has no threads."""
    now = [0.0]

    def monotonic() -> float:
        now[0] += 5.0
        return now[0]

    monkeypatch.setattr(freeze, "time", SimpleNamespace(monotonic=monotonic, sleep=lambda seconds: None))
    monkeypatch.setattr(freeze, "_threads", lambda: [])


def test_a_session_is_not_given_up_because_the_tracer_had_no_core(stalled):
    looks = iter([False, False, False])
    assert freeze.Freezer(kernel=None).freeze(lambda: next(looks, True))


def test_a_session_that_is_never_ready_is_given_up_after_a_bounded_number_of_looks(stalled):
    looks = []
    assert not freeze.Freezer(kernel=None).freeze(lambda: looks.append(1))
    assert len(looks) <= freeze.FREEZE_S / freeze.LOOK_S + 1
