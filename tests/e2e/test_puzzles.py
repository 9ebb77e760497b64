"""Puzzles of reasoning-gym on the real stack: the recipe, its server, several answers, the environment's own reward."""

from __future__ import annotations

import json

import pytest

from env_servers.puzzles.gym import installed
from openrlhf_tir.telemetry import metrics

from .test_guess_game import ROOT, command

STEPS = 8


@pytest.mark.long
@pytest.mark.skipif(not installed(), reason="reasoning-gym is not installed: pip install -r requirements-puzzles.txt")
def test_the_puzzles_recipe_trains_and_its_reward_moves(tmp_path):
    run = tmp_path / "run"
    flags = [
        "--recipe", "puzzles_cpu", "--run_dir", str(run), "--train.max_steps", str(STEPS),
        "--logger.trajectories", "1.0",
    ]  # fmt: skip
    done = command("quickstart", *flags, cwd=ROOT, timeout=3000)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    columns = metrics.read(run)
    assert columns["step"][-1] == STEPS
    # of the groups that ended between two updates, which may be none
    rewards = [r for r in columns["env/puzzles/reward_mean"] if r is not None]
    assert len(set(rewards)) > 2 and all(0 <= r <= 1 for r in rewards), rewards
    kept = [
        json.loads(line) for path in (run / "trajectories").glob("*.jsonl") for line in path.read_text().splitlines()
    ]
    played = [t for t in kept if t["env"] == "puzzles" and t["failed"] is None]
    assert any(not t["verdict"] for t in played), "groups of puzzles were trained"
    ended = [t["calls"] for t in played if t["calls"] and t["calls"][-1]["done"]]
    assert ended and all(calls[-1]["reward"] is not None and not any(c["done"] for c in calls[:-1]) for calls in ended)
    assert any(len(calls) > 1 for calls in ended), "a wrong answer was followed by another"
    shown = {r["text"] for t in played for r in t["runs"] if r["source"] == "env"}
    assert {" Wrong.\n", " Correct.\n"} <= shown
