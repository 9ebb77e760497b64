"""Call the `reward_func` of a Python file in worker processes that load it. The function never crosses a process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ...config import Reward
from ...errors import ConfigError, RewardError
from ...user_code import plugins
from ...user_code.failures import UserFunction
from .. import accept
from ..limits import RewardLimits
from ..workers import Limits, Workers
from .answer import parts_of, plain

REWARD_FUNC = plugins.Place(
    "remote reward",
    "reward.remote_url",
    "reward_func(queries, prompts, labels) -> a tensor, or a dict of rewards, scores, extra_logs",
    complaint=plugins.takes(3),
)
TAKE_S = 600.0
"""Seconds within which a free worker must accept a call. It may have to import torch before, which takes a minute on a
starved host."""


class RewardFile:
    """The worker processes of one file."""

    def __init__(self, cfg: Reward, name: str, limits: RewardLimits) -> None:
        """Create the pool. `name` is 'path/file.py:reward_func'."""
        self.call = _Call(name)
        self.workers = Workers(cfg.workers, Limits(limits.remote), count_name="reward.workers")
        self.workers.prepare = self.call.prepare
        self.workers.take_s = TAKE_S

    async def ask(self, queries: list[str], prompts: list[str], labels: list[str]) -> Any:
        """Return what the function returns for a batch of responses.

        Args:
            queries: [n] prompt and response.
            prompts: [n]
            labels: [n]

        Raises:
            RewardError: The function failed.
            Late: It was not over in time.
            VerifierError: Its workers died.
        """
        return await self.workers.run(self.call, queries, prompts, labels)

    async def close(self) -> None:
        """Kill the workers."""
        self.workers.close()


class _Call(UserFunction):
    """The function by its name, as it is sent to a worker."""

    def prepare(self) -> None:
        """Load the file in a worker that starts. If it cannot be loaded, the first call raises the error."""
        with suppress(ConfigError):
            plugins.load(REWARD_FUNC, self.name)

    def __call__(self, queries: list[str], prompts: list[str], labels: list[str]) -> Any:
        try:
            loaded = accept.LoadedFunction.load(REWARD_FUNC, self.name, RewardError)
        except ConfigError as error:
            raise RewardError(str(error)) from None
        with loaded.guarded():
            answer = plain(loaded.function(queries, prompts, labels))
            parts_of(answer, len(queries))
        if not isinstance(answer, Mapping):
            return answer
        # Nobody reads other entries. An object of the user's own class would break the pool: only workers can load it.
        return {name: answer.get(name) for name in ("rewards", "scores", "extra_logs")}
