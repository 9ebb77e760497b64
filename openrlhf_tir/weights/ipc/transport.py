"""Push weights through memory that learner and engine share on one device, and by file where that does not work.

    trial       once for each engine: it maps a few random bytes of the learner's device
    expose      the learner copies its first buckets into buffers on the device, with their digests
    map         each engine maps them and computes the digests; it goes on answering requests
    load        each engine stands still, loads them, reads its model back, and samples the canary

What fails before `load` changes nothing in an engine: it gets this push and all later ones by file, and the log says
why, once. A push of more buckets than there are buffers goes on inside the pause, bucket by bucket: the learner copies
one while the engines load the one before.

A second push of the same version to an engine, after a proof that failed, goes by file: it must not depend on whatever
was wrong with the first.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Container, Mapping, Sequence
from itertools import count

from ...errors import InfraError
from ...ports import Exposes, RemoteEngine, RolloutEngine
from ...pushes import Canary, Exposed
from ...waiting.deadlines import Deadline
from ..file_transport import FileTransport
from ..transport import Result, Results, Transport
from .merged import push_digest

log = logging.getLogger(__name__)
Outcomes = dict[RemoteEngine, Result]
"""The results of engines whose push has ended."""


class IpcTransport(Transport):
    """Pushes through shared device memory.

    The digest is one of device sums, or the file's where no engine got the weights otherwise.
    """

    def __init__(self, learner: Exposes, by_file: FileTransport, deadline: Deadline) -> None:
        """Create a transport; nothing is tried or exposed yet.

        Args:
            learner: Exposes the weights.
            by_file: Brings pushes to engines that cannot map them.
            deadline: Deadline of an engine's part of a push.
        """
        super().__init__()
        self.learner = learner
        self.by_file = by_file
        self.deadline = deadline
        self.disabled_reason: str | None = None
        """Why nothing is exposed any more; None while it works."""
        self._can_map: dict[RemoteEngine, bool] = {}
        """Whether an engine can map what the learner exposes; engines that were not tried yet are missing."""
        self._engines_reached: set[RemoteEngine] = set()
        """Engines to which this version was sent through shared memory, also if that failed: they get a file next."""
        self._file_version: int | None = None
        """The version that was written to a file; None: the last push was not."""
        self._pushes_by_ipc = 0
        """Engines that got weights through shared memory since `begin`."""
        self._repeated_by_file = 0
        """Engines that got weights by file since `begin`, after shared memory had failed for the same version."""
        transport = uuid.uuid4().hex[:8]  # an engine may still hold a part of a push of the learner before
        self._names = (f"push {number} of {transport}" for number in count(1))

    @property
    def parts(self) -> Mapping[str, float]:
        return {"push_ipc": float(self._pushes_by_ipc), "push_ipc_failed": float(self._repeated_by_file)}

    def begin(self) -> None:
        super().begin()
        self._pushes_by_ipc = 0
        self._repeated_by_file = 0

    async def take(self, version: int, differs_from: str | None, *, full: bool = False) -> None:
        await super().take(version, differs_from, full=full)
        self._engines_reached.clear()
        self._file_version = None

    def remove(self) -> None:
        self.by_file.remove()

    async def send(self, engines: list[RemoteEngine], canary: Canary) -> Results:
        """Bring the push into each engine, by file into those that cannot map it or had it already.

        Raises:
            WeightsUnverified: The weights had to differ from the last push's, but do not. Errors of the learner are
                raised as they are.
        """
        outcomes: Outcomes = {}
        candidates: list[RemoteEngine] = []
        if not self.disabled_reason:
            candidates = self._mapping(engines, self._engines_reached)
            outcomes |= await self._try(candidates)
        if not self.disabled_reason:
            outcomes |= await self._expose(self._mapping(candidates, outcomes), canary)
        by_file = [engine for engine in engines if engine not in outcomes]
        if by_file:
            self._repeated_by_file += sum(engine in self._engines_reached.union(candidates) for engine in by_file)
            outcomes |= zip(by_file, await self._send_file(by_file, canary), strict=True)
        return [outcomes[engine] for engine in engines]

    def _mapping(self, engines: Sequence[RemoteEngine], others: Container[RemoteEngine]) -> list[RemoteEngine]:
        """Return the engines that can map what the learner exposes, as far as is known, and are not among `others`."""
        return [engine for engine in engines if engine not in others and self._can_map.get(engine, True)]

    async def _try(self, engines: Sequence[RemoteEngine]) -> Outcomes:
        """Let engines that are new here map a few random bytes. Return the errors of those that are lost."""
        new = [engine for engine in engines if engine not in self._can_map]
        if not new:
            return {}
        trial = await self.learner.expose_trial()
        if trial.fault:
            self._switch_off(f"the learner cannot share its device's memory: {trial.fault}")
            return {}
        return await self._map(new, trial)

    async def _map(self, engines: Sequence[RemoteEngine], exposed: Exposed) -> Outcomes:
        """Let engines map what is exposed. Note those that cannot, and return the errors of those that are lost."""
        calls = [engine.call(RolloutEngine.map_exposed, exposed, deadline=self.deadline) for engine in engines]
        outcomes: Outcomes = {}
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for engine, answer in zip(engines, answers, strict=True):
            if isinstance(answer, BaseException):
                outcomes[engine] = answer
                continue
            self._can_map[engine] = answer is None
            if answer is not None:
                log.warning("weights go to %s by file from now on, and not through shared device memory: %s",
                            engine.name, answer)  # fmt: skip
        return outcomes

    async def _expose(self, engines: list[RemoteEngine], canary: Canary) -> Outcomes:
        """Push to engines through shared memory. Engines without an outcome need a file."""
        if not engines:
            return {}
        push = next(self._names)
        exposed = await self._exposed(push, 0)
        if exposed.fault:
            self._switch_off(f"the learner cannot expose its weights: {exposed.fault}")
            return {}
        outcomes = await self._map(engines, exposed)
        loading = self._mapping(engines, outcomes)
        ahead: asyncio.Task[Exposed] | None = None
        try:
            digests: list[str] = []
            while loading:
                digests += [bucket.digest for bucket in exposed.buckets]
                if not exposed.remaining:
                    self._note_digest(push_digest(digests))
                elif len(exposed.buckets) == 1:  # the other buffer is free: its bucket was acknowledged
                    ahead = asyncio.create_task(self._exposed(push, len(digests)), name=f"expose {push}")
                await self._load(loading, exposed, canary, outcomes)
                if not exposed.remaining or not loading:
                    break
                exposed = await (ahead or self._exposed(push, len(digests)))
                if exposed.fault:  # the engines are frozen with a part of the weights, and take a file in that state
                    self._switch_off(
                        f"the learner stopped to expose its weights at bucket {len(digests)}: {exposed.fault}"
                    )
                    break
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)
        self._engines_reached.update(engine for engine, result in outcomes.items() if isinstance(result, InfraError))
        return outcomes

    async def _load(self, loading: list[RemoteEngine], exposed: Exposed, canary: Canary, outcomes: Outcomes) -> None:
        """Let engines load what is exposed, and wait for all: their answers acknowledge it.

        Args:
            loading: The engines. Those that fail are removed.
            exposed: The buckets.
            canary: What the engines sample after the last bucket.
            outcomes: Receives errors, and after the last bucket what the engines sampled.
        """
        calls = [
            engine.call(RolloutEngine.load_exposed, exposed, self.version, canary, deadline=self.deadline)
            for engine in loading
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for engine, answer in zip(list(loading), answers, strict=True):
            if isinstance(answer, BaseException):
                outcomes[engine] = answer
                loading.remove(engine)
            elif not exposed.remaining:
                outcomes[engine] = answer
                self._engines_reached.add(engine)
                self._pushes_by_ipc += 1

    async def _exposed(self, push: str, first: int) -> Exposed:
        start = time.monotonic()
        exposed = await self.learner.expose(push, first)
        self.seconds += time.monotonic() - start
        self.nbytes += sum(bucket.nbytes for bucket in exposed.buckets)
        return exposed

    async def _send_file(self, engines: list[RemoteEngine], canary: Canary) -> Results:
        """Push to engines by file, which is written at most once for each version."""
        self.by_file.begin()
        if self._file_version != self.version:
            await self.by_file.take(self.version, self._must_differ_from, full=True)
            self._must_differ_from = None
            self._file_version = self.version
        if self.digest is None:
            self.digest = self.by_file.digest
        results = await self.by_file.send(engines, canary)
        self.seconds += self.by_file.seconds
        self.nbytes += self.by_file.nbytes
        return results

    def _switch_off(self, reason: str) -> None:
        self.disabled_reason = reason
        log.warning("weights go by file from now on, and not through shared device memory: %s", reason)
