"""The environment that the documentation walks through works as it says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from openrlhf_tir.config.servers import OTHER
from openrlhf_tir.rollout.environment_client.check import Options, check_server

from ..env_process import Http, env_server

DOCS = Path(__file__).resolve().parents[3] / "docs" / "environments.md"


@pytest.mark.slow
async def test_the_environment_of_the_documentation_is_a_server_that_keeps_the_protocol(tmp_path):
    (block,) = [
        part.partition("```")[0] for part in DOCS.read_text().split("```python\n")[1:] if "class GuessEnv" in part
    ]
    Path(tmp_path, "guess.py").write_text(block)
    assert len(block.split("class GuessEnv")[1].split("if __name__")[0].strip().splitlines()) <= 30
    with env_server("guess", tmp_path, "--max-queue", "16", env={"PYTHONPATH": f"{tmp_path}:{DOCS.parents[1]}"}) as (
        url,
        _,
    ):
        async with Http(url) as http:
            assert (await http.send("GET", "/health"))[1]["isolation"] == "not_needed"
            session, low, high = await http.open({"high": 1000}, seed=3), 1, 1000
            for step_id in range(12):
                guess = (low + high) // 2
                _, reply, _ = await http.step(session, step_id, str(guess))
                if reply["done"]:
                    break
                low, high = (guess + 1, high) if reply["observation"] == "higher" else (low, guess - 1)
            assert (reply["observation"], reply["reward"], reply["signals"]["tries"]) == ("Correct.", 1.0, step_id + 1)
        actions = replace(OTHER.actions, valid="50", failing="x", ending="1", ending_task={"high": 1})
        findings = await check_server(url, actions, Options(steps=100, concurrency=8))
    assert {f.verdict for f in findings} == {"pass", "skip"}, findings
    assert sum(f.verdict == "pass" for f in findings) >= 13
    (end,) = [f for f in findings if f.check == "end and rewards"]
    assert end.fact.startswith("done ") and re.findall(r"\d+", end.fact) == ["1", "1"]
