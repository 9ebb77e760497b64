"""Other people's environments on the real stack: a game as an OpenEnv server, an MCP server, one of GEM's and a tool
server that answers as verl-tool's does, trained for two updates each."""

from __future__ import annotations

import json

import pytest

from miniatures.toy.model import save_model
from openrlhf_tir.telemetry import metrics
from tests.contract.adapters.games import served, venv_of
from tests.contract.docs.docs_blocks import block

from .test_guess_game import command

pytestmark = pytest.mark.long

OWN = """
# Behind the page's Digits: a digit is a guess, as each of the games wants it; and a reward for the one that has none.
import json

from openrlhf_tir.types import RewardParts


class Boxed(Digits):
    def advance(self, completion):
        said = super().advance(completion)
        return Call(f"\\\\boxed{{{said.action}}}") if isinstance(said, Call) else said


class Tool(Digits):
    def advance(self, completion):
        said = super().advance(completion)
        if not isinstance(said, Call):
            return said
        return Call(json.dumps([{"name": "guess", "arguments": {"number": int(said.action)}}]))


def earned(trajectory, task, context):
    right = "Correct." in trajectory.text
    return RewardParts(float(right), correct=right, parts={})
"""


@pytest.mark.parametrize(
    ("adapter", "protocol", "reward"),
    [
        ("openenv", "own.py:Digits", "env"),
        ("mcp", "own.py:Tool", "own.py:earned"),
        ("gem", "own.py:Boxed", "env"),
        ("verl_tool", "own.py:Digits", "env"),
    ],
)
def test_a_game_of_others_trains_and_its_reward_is_not_constant(adapter, protocol, reward, tmp_path):
    (tmp_path / "own.py").write_text(block("protocols.md", "python", "class Digits") + OWN)
    (tmp_path / "guess.jsonl").write_text((json.dumps({"prompt": "Guess.\n", "label": "-"}) + "\n") * 8)
    save_model(tmp_path / "model", seed=0)
    with served(venv_of(adapter, tmp_path), adapter, tmp_path) as url:
        recipe = block("protocols.md", "toml", "digits.py:Digits")
        for ours, theirs in (
            ('name = "guess"', f'name = "{adapter}"'),
            ('file = "guess.py:GuessEnv"', f'url = "{url}"'),
            ("digits.py:Digits", protocol),
            ('name = "env" ', f'name = "{reward}" '),
            # GEM's rules of the game alone are 300 tokens of the toy model's
            ("max_new_tokens = 96", "max_new_tokens = 960"),
            ("max_len = 160", "max_len = 1024"),
        ):
            assert ours in recipe, ours
            recipe = recipe.replace(ours, theirs)
        (tmp_path / "game.toml").write_text(recipe)
        done = command("train", "--recipe", "game.toml", "--train.max_steps", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    columns = metrics.read(tmp_path / "run")
    assert columns["step"] == [1, 2] and all(n > 0 for n in columns["trained_tokens"])
    kept = [
        json.loads(line)
        for path in (tmp_path / "run/trajectories").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert len({t["reward"] for t in kept}) > 1, "all trajectories have one reward"
