"""A Python file's `reward_func`, in worker processes that loaded it. The function itself never crosses a process."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ...config import Reward
from ...errors import ConfigError, RewardError
from ...user_code import plugins
from .. import accept
from ..workers import Workers
from .answer import plain

REWARD_FUNC = plugins.Place(
    "remote reward",
    "reward.remote_url",
    "reward_func(queries, prompts, labels) -> a tensor, or a dict of rewards, scores, extra_logs",
    complaint=plugins.takes(3),
)
TAKE_S = 600.0
"""Within so long a free worker takes a call: it may import torch before, which takes a minute on a starved host."""


class RewardFile:
    def __init__(self, cfg: Reward, name: str) -> None:
        """`name`: 'path/file.py:reward_func'."""
        names = {"wall_name": "reward.remote_timeout_s", "count_name": "reward.workers"}
        self.call = _Call(name)
        self.workers = Workers(cfg.workers, None, cfg.remote_timeout_s, **names)
        self.workers.prepare, self.workers.take_s = self.call.prepare, TAKE_S

    async def ask(self, queries: list[str], prompts: list[str], labels: list[str]) -> Any:
        """Raises RewardError when the function fails, Late when not over in time, VerifierError when workers die."""
        return await self.workers.run(self.call, queries, prompts, labels)

    async def close(self) -> None:
        self.workers.close()


class _Call:
    user_code = True
    """It is interrupted where it is when it uses up its time (rewards/workers.py)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.__name__ = name.rpartition("/")[2]

    def prepare(self) -> None:
        """In a worker that starts. A file that cannot be loaded is told by the first call, which has a listener."""
        with suppress(ConfigError):
            plugins.load(REWARD_FUNC, self.name)

    def __call__(self, queries: list[str], prompts: list[str], labels: list[str]) -> Any:
        try:
            function = plugins.load(REWARD_FUNC, self.name)
        except ConfigError as e:
            raise RewardError(str(e)) from None
        with accept.named(REWARD_FUNC, self.name, function, RewardError):
            return plain(function(queries, prompts, labels))
