"""The self-test of a sandbox on a machine that is busy while the server starts."""

from __future__ import annotations

import pytest

from env_servers.python_tir.isolation.selftest import PROBE_S, prove_isolation
from env_servers.python_tir.limits import Limits
from env_servers.python_tir.sandbox import Execution, Sandbox, SandboxError


class Slow(Sandbox):
    """Runs a snippet in so many seconds, and confines it."""

    isolation, limits = "bwrap", Limits(code_timeout_s=1.0)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def execute(self, snippet, limits):
        if self.seconds > limits.code_timeout_s:
            return Execution(b"", b"", None, limits.code_timeout_s, killed="time_limit")
        return Execution(b"[]\n", b"", 0, self.seconds)


async def test_a_probe_may_take_longer_than_the_models_code():
    await prove_isolation(Slow(30.0))


async def test_a_probe_that_never_ends_is_blamed_on_the_machine_and_not_on_the_isolation():
    with pytest.raises(SandboxError, match=rf" {PROBE_S:g} s\b"):
        await prove_isolation(Slow(1e9))
