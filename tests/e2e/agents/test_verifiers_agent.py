"""A verifiers environment beside the real engine: its rollouts are recorded to the token and make a group, its rubric's
word is the reward.

The package is installed into an environment of its own by pip. TIR_VERIFIERS_VENV names one that is there already.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_tir.types import GroupKey, Task

from ..support.sessions_actor import TOKEN
from .test_agent_sdks import DEADLINE_S, actor  # noqa: F401  the engine with room for a system prompt

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="session")]
ROOT = Path(__file__).parents[3]
KINDS = ("single", "tool", "turns")


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> str:
    venv = os.environ.get("TIR_VERIFIERS_VENV")
    if venv is None:
        venv = str(tmp_path_factory.mktemp("verifiers") / "venv")
        subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=120)
        subprocess.run([f"{venv}/bin/pip", "install", "-q", f"{ROOT}[verifiers]"], check=True, timeout=1800)
    return f"{venv}/bin/python"


@pytest.mark.parametrize("kind", KINDS)
async def test_an_environment_of_verifiers_rolls_out_a_group_that_can_be_trained(actor, python, kind, tmp_path):  # noqa: F811
    (tmp_path / "endpoints").mkdir()
    (tmp_path / "endpoints/rollout-0").write_text(actor.url)
    env = os.environ | {
        "TIR_ROLLOUT_TOKEN": TOKEN,
        "PYTHONPATH": f"{ROOT / 'tests/contract/adapters'}{os.pathsep}{ROOT}",
    }
    chosen = ["verifiers_arith", "--args", json.dumps({"kind": kind})]
    subprocess.run(
        [python, "-m", "env_servers.adapters.verifiers.make_tasks", *chosen, "--out", str(tmp_path / "rows.jsonl")],
        env=env,
        check=True,
        timeout=120,
    )
    row = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])
    flags = [*chosen, str(tmp_path), "--max-tokens", "32", "--workers", "4"]
    with (tmp_path / "agent.log").open("w") as log:
        agent = subprocess.Popen(
            [python, "-m", "env_servers.adapters.verifiers", *flags], env=env, stdout=log, stderr=log
        )
    try:
        async with asyncio.timeout(DEADLINE_S):
            meta, group = await actor.runner.run(
                GroupKey(0, 100 + KINDS.index(kind)), Task(row["prompt"], row["label"], meta=row["meta"])
            )
    finally:
        agent.kill()
        agent.wait()
    said = (tmp_path / "agent.log").read_text()[-2000:]
    # random weights end a response at once now and then; verifiers gives up then
    empty = said.count("Aborted rollout due to EmptyModelResponseError")
    assert meta.failed is None and meta.failures == ({"agent_failed": empty} if empty else {}), (meta.why, said)
    assert len(group.valid) == 4 - empty and all(t.model_tokens > 0 for t in group.valid)
    assert all(t.reward == t.parts["correct"] for t in group.valid), "the rubric's word"
