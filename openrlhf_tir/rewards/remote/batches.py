"""Collect the responses of one prompt into calls of a remote reward. No response waits for a batch to fill.

first response    ──> call with 1
three more end    ──> (wait for the answer) ──> call with 3        at most reward.remote_batch in one call
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ...config import Reward
from ...errors import RewardError
from ...inert import plain
from ...types import RewardParts, Task, Trajectory
from ..accept import WrongResult
from ..limits import RewardLimits
from .answer import parts_of
from .file import RewardFile
from .http import RewardServers


@dataclass
class _Waiting:
    """The responses of one prompt that are not in a call yet."""

    task: Task
    queries: list[tuple[str, asyncio.Future[RewardParts]]] = field(default_factory=list)
    calling: asyncio.Task[None] | None = None


class RemoteReward:
    """A rollout actor's remote reward. It belongs to one event loop."""

    def __init__(self, cfg: Reward, decode: Callable[[list[int]], str] | None, limits: RewardLimits) -> None:
        """Create it without starting or connecting anything.

        Args:
            cfg: The section [reward].
            decode: Returns the text of token ids with special tokens, which OpenRLHF's rewards receive; None: they
                receive the texts of prompt and response.
            limits: How long a call may take, and how often it is repeated.
        """
        url = cfg.remote_url or ""
        self.cfg = cfg
        self.decode = decode
        self.server: RewardFile | RewardServers = (
            RewardFile(cfg, url, limits)
            if url.endswith(":reward_func")
            else RewardServers([part.strip() for part in url.split(",") if part.strip()], limits)
        )
        self._prompts: dict[int, _Waiting] = {}

    async def score(self, trajectory: Trajectory, task: Task) -> RewardParts:
        """Return the reward of one response.

        Raises:
            RewardError: The reward failed, or its answer has another form.
            VerifierError: It did not answer.
        """
        tokens = [*trajectory.prompt_ids.tolist(), *trajectory.token_ids.tolist()]
        query = self.decode(tokens) if self.decode else plain(task.prompt) + trajectory.text
        # The samples of a group share one Task object, and `waiting` keeps it alive: its id is unique meanwhile.
        waiting = self._prompts.setdefault(id(task), _Waiting(task))
        answer: asyncio.Future[RewardParts] = asyncio.get_running_loop().create_future()
        waiting.queries.append((query, answer))
        if waiting.calling is None:
            waiting.calling = asyncio.create_task(self._call(waiting), name="remote reward")
        return await answer

    async def _call(self, waiting: _Waiting) -> None:
        """Make calls until no response of a prompt waits."""
        await asyncio.sleep(0)  # responses that end at the same time share a call
        try:
            while pending := [(query, answer) for query, answer in waiting.queries if not answer.done()]:
                waiting.queries = pending[self.cfg.remote_batch :]
                await self._batch(waiting.task, pending[: self.cfg.remote_batch])
        finally:
            del self._prompts[id(waiting.task)]

    async def _batch(self, task: Task, batch: list[tuple[str, asyncio.Future[RewardParts]]]) -> None:
        """Make one call and give each response its reward, or the error."""
        n = len(batch)
        try:
            reply = await self.server.ask([query for query, _ in batch], [task.prompt] * n, [task.label] * n)
            results = self._read(reply, n)
        except Exception as error:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        except asyncio.CancelledError:
            for _, answer in batch:
                answer.cancel()
            raise
        for (_, answer), parts in zip(batch, results, strict=True):
            if not answer.done():
                answer.set_result(parts)

    def _read(self, reply: object, n: int) -> list[RewardParts]:
        """Return the rewards in a reply for n responses.

        Raises:
            RewardError: The reply has another form.
        """
        try:
            return parts_of(reply, n)
        except WrongResult as error:
            raise RewardError(
                f"reward.remote_url = {self.cfg.remote_url!r}: {error}. It must answer"
                ' {"rewards": [one number per query], "scores": the same or left out, "extra_logs": {name: numbers}};'
                " a server for one query at a time wants reward.remote_batch = 1."
            ) from None

    async def close(self) -> None:
        """Cancel all calls and stop the processes or connections."""
        for waiting in self._prompts.values():
            for _, answer in waiting.queries:  # those of a call under way are cancelled with it
                answer.cancel()
            if waiting.calling:
                waiting.calling.cancel()
        await self.server.close()
