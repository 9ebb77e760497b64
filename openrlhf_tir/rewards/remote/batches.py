"""Batches: responses of one prompt, as they end -> calls of a remote reward. Nobody waits for a batch to fill.

first response    ->  call [1]
three more end    ->  (wait while it is answered)  ->  call [3]        at most reward.remote_batch in one
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ...config import Reward
from ...errors import RewardError
from ...inert import plain
from ...types import RewardParts, Task, Trajectory
from .answer import parts_of
from .file import RewardFile
from .http import RewardServers


@dataclass
class _Waiting:
    """The responses of one prompt that no call has taken yet."""

    task: Task
    queries: list[tuple[str, asyncio.Future[RewardParts]]] = field(default_factory=list)
    calling: asyncio.Task[None] | None = None


class RemoteReward:
    """Owned by a rollout actor; belongs to one event loop."""

    def __init__(self, cfg: Reward, decode: Callable[[list[int]], str] | None = None) -> None:
        """`decode`: token ids -> text with special tokens, as OpenRLHF gives it to rewards; None: the texts of prompt
        and response."""
        url = cfg.remote_url or ""
        self.cfg, self.decode = cfg, decode
        self.server: RewardFile | RewardServers = (
            RewardFile(cfg, url)
            if url.endswith(":reward_func")
            else RewardServers(cfg, [u.strip() for u in url.split(",") if u.strip()])
        )
        self.calls = 0
        self._prompts: dict[int, _Waiting] = {}

    async def score(self, trajectory: Trajectory, task: Task) -> RewardParts:
        """Raises RewardError, VerifierError."""
        tokens = [*trajectory.prompt_ids.tolist(), *trajectory.token_ids.tolist()]
        query = self.decode(tokens) if self.decode else plain(task.prompt) + trajectory.text
        # a group's samples share one Task object, which `waiting` keeps
        waiting = self._prompts.setdefault(id(task), _Waiting(task))
        answer: asyncio.Future[RewardParts] = asyncio.get_running_loop().create_future()
        waiting.queries.append((query, answer))
        if waiting.calling is None:
            waiting.calling = asyncio.create_task(self._call(waiting), name="remote reward")
        return await answer

    async def _call(self, waiting: _Waiting) -> None:
        await asyncio.sleep(0)  # those that end in the same breath go together
        try:
            while wanted := [(query, answer) for query, answer in waiting.queries if not answer.done()]:
                waiting.queries = wanted[self.cfg.remote_batch :]
                await self._batch(waiting.task, wanted[: self.cfg.remote_batch])
        finally:
            del self._prompts[id(waiting.task)]
            for _, answer in waiting.queries:
                answer.cancel()

    async def _batch(self, task: Task, batch: list[tuple[str, asyncio.Future[RewardParts]]]) -> None:
        n = len(batch)
        self.calls += 1
        try:
            said = await self.server.ask([query for query, _ in batch], [task.prompt] * n, [task.label] * n)
            results = self._read(said, n)
        except Exception as e:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(e)
            return
        except asyncio.CancelledError:
            for _, answer in batch:
                answer.cancel()
            raise
        for (_, answer), parts in zip(batch, results, strict=True):
            if not answer.done():
                answer.set_result(parts)

    def _read(self, said: object, n: int) -> list[RewardParts]:
        try:
            return parts_of(said, n)
        except ValueError as e:
            raise RewardError(
                f'reward.remote_url = {self.cfg.remote_url!r}: {e}. It must answer {{"rewards": [one number per query],'
                ' "scores": the same or left out, "extra_logs": {name: numbers}}; a server for one query at a time'
                " wants reward.remote_batch = 1."
            ) from None

    async def close(self) -> None:
        for waiting in list(self._prompts.values()):
            if waiting.calling:
                waiting.calling.cancel()
        await self.server.close()
