"""One game, guess a digit, as four kinds of other people's environments, each behind our adapter.

Their packages are installed into environments of their own by pip. TIR_ADAPTERS_VENVS names a directory that has them
already, as openenv/, mcp/ and gem/. verl-tool is in no registry: what it sends over the wire is written here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..listening import listening

ROOT = Path(__file__).parents[4]

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


def venv_of(extra: str, tmp_path: Path) -> Path:
    """Python of an environment that has the package and this project's servers."""
    if extra == "verl_tool":
        return Path(sys.executable)
    if "TIR_ADAPTERS_VENVS" in os.environ:
        return Path(os.environ["TIR_ADAPTERS_VENVS"]) / extra / "bin/python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=600)
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
