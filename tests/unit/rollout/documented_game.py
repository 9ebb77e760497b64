"""The game of the documentation, played with its own messages protocol: configuration, sessions without a server, and a
reward."""

from __future__ import annotations

from pathlib import Path

from openrlhf_tir.config import Config
from openrlhf_tir.types import RewardParts
from openrlhf_tir.user_code import plugins
from tests.contract.docs.docs_blocks import block
from tests.step_reply import reply_of


class Game:
    """A session of the documentation's environment, without its server."""

    server = None

    def __init__(self, cls, task, seed) -> None:
        self._env = cls()
        self._task = task
        self._seed = seed

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        await self._env.close()

    async def reset(self):
        return await self._env.reset(self._task, self._seed)

    async def step(self, action, *, step_id):
        return reply_of(await self._env.step(action, 1.0), step_id)


class Games:
    """Sessions of the game whose environment is in a file of `directory`."""

    def __init__(self, directory: Path) -> None:
        file = directory / "guess.py"
        file.write_text(block("environments.md", "python", "class GuessEnv"))
        self._cls = plugins.load(plugins.ENVIRONMENT, f"{file}:GuessEnv")

    def session(self, env, task, *, seed):
        return Game(self._cls, task, seed)


class Guessed:
    """The sum of the rewards of an episode's calls."""

    async def score(self, trajectory, task):
        won = float(sum(call.reward or 0 for call in trajectory.calls))
        return RewardParts(won, won > 0, {})


def game_config(directory: Path, samples: int) -> Config:
    """Return the configuration of groups of `samples`, with the protocol in a file of `directory`."""
    file = directory / "asks.py"
    file.write_text(block("protocols.md", "python", "class Asks"))
    return Config(
        env={"name": "guess", "protocol": f"{file}:Asks", "options": {"hint": " Try again."}, "max_calls": 2},
        rollout={"n_samples_per_prompt": samples, "batch_size": 4, "max_new_tokens": 100, "drift_check": 1.0},
        data={"apply_chat_template": True, "max_len": 224},
    )
