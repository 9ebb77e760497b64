"""What an actor on a node with another clock was busy with, as its controller's timeline has it."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from openrlhf_tir.cluster.engine_handle import EngineHandle
from openrlhf_tir.config import Config
from openrlhf_tir.simulation.virtual_loop import run


def test_busy_times_of_a_node_that_is_an_hour_ahead_are_put_on_the_controllers_clock():
    now = time.time()

    class Busy:
        @staticmethod
        def remote(method):
            assert method == "busy_intervals"
            answer = asyncio.get_running_loop().create_future()
            spans = {("engine", "decode"): [(now + 3590, now + 3595)], ("env", "start"): []}
            answer.set_result((time.time() + 3600, spans))
            return answer

    async def scenario():
        member = EngineHandle(0, SimpleNamespace(invoke=Busy), None, lambda *_: None, Config())
        found = await member.busy_intervals()
        [(start, end)] = found["engine", "decode"]
        assert (start, end) == pytest.approx((now - 10, now - 5), abs=1.0) and found["env", "start"] == []

    run(scenario())
