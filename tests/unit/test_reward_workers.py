"""Workers: what a check that hangs costs."""

from __future__ import annotations

import asyncio

import pytest
from pebble.common import CONSTS

from openrlhf_tir.rewards import symbolic
from openrlhf_tir.rewards.workers import Late, Workers

HANGS = "9^{9^{9^{9}}}"


async def test_a_worker_that_hangs_is_killed_at_once(monkeypatch):
    """Its one C call lets no Python handler run; pebble would wait `term_timeout` for SIGTERM, with the whole pool. Here that is longer than the test."""
    monkeypatch.setattr(CONSTS, "term_timeout", 600)
    workers = Workers(1, 1.0)
    try:
        await workers.warm()
        async with asyncio.timeout(60):
            with pytest.raises(Late):
                await workers.run(symbolic.equal, HANGS, "7")
            assert await workers.run(symbolic.equal, "x", "x")
    finally:
        monkeypatch.undo()
        workers.close()
