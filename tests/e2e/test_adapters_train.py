"""Other people's environments on the real stack: a game as an OpenEnv server, an MCP server, one of GEM's and a tool
server that answers as verl-tool's does, trained for two updates each.

Their packages are installed into environments of their own by pip. TIR_ADAPTERS_VENVS names a directory that has them
already, as openenv/, mcp/ and gem/. verl-tool is in no registry: what it sends over the wire is written here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from openrlhf_tir.logs import metrics
from openrlhf_tir.toy.model import save_model
from tests.contract.adapters.listening import listening
from tests.contract.docs.docs_blocks import block

from .test_guess_game import command

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]

OPENENV = """
import sys
import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Guess(Action):
    number: str


class Told(Observation):
    said: str = ""


class Game(Environment[Guess, Told, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **more):
        return Told(said="Guess.")

    def step(self, action, timeout_s=None, **more):
        right = action.number in "123"
        return Told(said="Correct." if right else "wrong", reward=float(right), done=right)

    @property
    def state(self):
        return State()


app = create_fastapi_app(Game, Guess, Told, max_concurrent_envs=256)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
"""
MCP = '''
from mcp.server.mcpserver import MCPServer

server = MCPServer("game")


@server.tool()
def guess(number: int) -> str:
    """Guess the number."""
    return "Correct." if number in (1, 2, 3) else "wrong"


server.run("stdio")
'''
VERL_TOOL = """
import sys
from aiohttp import web


def observe(action, extra):
    if extra.get("finish"):
        return "", True, True
    right = action in ("1", "2", "3")
    return {"obs": "Correct." if right else "wrong", "reward": float(right)}, right, True


async def get_observation(request):
    body = await request.json()
    told = [observe(action, extra) for action, extra in zip(body["actions"], body["extra_fields"], strict=True)]
    observations, dones, valids = zip(*told, strict=True)
    return web.json_response({"observations": observations, "dones": dones, "valids": valids})


app = web.Application()
app.router.add_post("/get_observation", get_observation)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""
GAMES = {"openenv": OPENENV, "mcp": MCP, "gem": "", "verl_tool": VERL_TOOL}
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


def venv_of(extra: str, tmp_path: Path) -> Path:
    """Python of an environment that has the package and this project's servers."""
    if extra == "verl_tool":
        return Path(sys.executable)
    if "TIR_ADAPTERS_VENVS" in os.environ:
        return Path(os.environ["TIR_ADAPTERS_VENVS"]) / extra / "bin/python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)
    subprocess.run([f"{tmp_path}/venv/bin/pip", "install", "-q", f"{ROOT}[{extra}]"], check=True, timeout=1800)
    return tmp_path / "venv/bin/python"


@contextmanager
def served(python: Path, adapter: str, tmp_path: Path) -> Iterator[str]:
    """Base URL of the adapter in front of the game."""
    env = {"PYTHONPATH": str(ROOT)}

    def in_front(*flags: str):
        return listening([str(python), "-m", f"env_servers.adapters.{adapter}", *flags, "--port"], **env)

    (tmp_path / "game.py").write_text(GAMES[adapter])
    if adapter in ("openenv", "verl_tool"):
        with (
            listening([str(python), str(tmp_path / "game.py")], **env) as game,
            in_front("--url", f"http://127.0.0.1:{game}") as port,
        ):
            yield f"http://127.0.0.1:{port}"
    else:
        flags = (
            ["--command", f"{python} {tmp_path / 'game.py'}"]
            if adapter == "mcp"
            else ["--gem", "game:GuessTheNumber-v0-easy"]
        )
        with in_front(*flags) as port:
            yield f"http://127.0.0.1:{port}"


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
