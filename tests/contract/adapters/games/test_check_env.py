"""`check-env` on the adapters: what holds for our servers holds for other people's environments behind them."""

from __future__ import annotations

import json

import pytest

from openrlhf_tir.config.servers import Actions
from openrlhf_tir.rollout.environment_client.check import Options, check_server

from . import served, venv_of

pytestmark = pytest.mark.long


def guess(number: int) -> str:
    return json.dumps([{"name": "guess", "arguments": {"number": number}}])


ACTIONS = {
    "openenv": Actions(valid="7", ending="1"),
    "mcp": Actions(valid=guess(7), failing="no JSON"),
    "gem": Actions(valid=r"\boxed{7}"),
    "verl_tool": Actions(valid="7", ending="1"),
}


@pytest.mark.parametrize("adapter", ACTIONS)
async def test_an_adapter_passes_every_check(adapter, tmp_path):
    with served(venv_of(adapter, tmp_path), adapter, tmp_path) as url:
        options = Options(steps=60, concurrency=8, flood=16, timeout_s=20.0)
        results = await check_server(url, ACTIONS[adapter], options)
    assert not [(f.check, f.fact) for f in results if f.verdict == "fail"]
    assert sum(f.verdict == "pass" for f in results) > len(results) / 2
