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
from collections.abc import Mapping
from itertools import count

from ...errors import InfraError, WeightsUnverified
from ...ports import Exposes, RemoteEngine, RolloutEngine
from ...pushes import Canary, Exposed
from ...types import Completion
from ...waiting.deadlines import Deadline
from ..file_transport import FileTransport
from ..transport import Results, same_weights
from .merged import push_digest

log = logging.getLogger(__name__)
Outcomes = dict[int, list[Completion] | BaseException]
"""An engine's completions or error by its position."""


class IpcTransport:
    """Implements `transport.Transport` with shared device memory."""

    delta = False

    def __init__(self, learner: Exposes, by_file: FileTransport, deadline: Deadline) -> None:
        """Create a transport; nothing is tried or exposed yet.

        Args:
            learner: Exposes the weights.
            by_file: Brings pushes to engines that cannot map them.
            deadline: Deadline of an engine's part of a push.
        """
        self.learner = learner
        self.by_file = by_file
        self.deadline = deadline
        self.version = 0
        self.digest: str | None = None
        """The digest of `version`'s weights, of device sums; the file's where no engine got them otherwise. None before
        they were sent."""
        self.begun = False
        self.disabled_reason: str | None = None
        """Why nothing is exposed any more; None while it works."""
        self._engines_tried: set[RemoteEngine] = set()
        """Engines that have mapped a trial."""
        self._engines_by_file: set[RemoteEngine] = set()
        """Engines that cannot map what the learner exposes."""
        self._engines_reached: set[RemoteEngine] = set()
        """Engines to which this version was sent through shared memory, also if that failed: they get a file next."""
        self._must_differ_from: str | None = None
        """The digest that this push must not have."""
        self._file_version: int | None = None
        """The version that was written to a file; None: the last push was not."""
        self._expose_s = 0.0
        self._nbytes = 0
        self._pushes_by_ipc = 0
        """Engines that got weights through shared memory since `begin`."""
        transport = uuid.uuid4().hex[:8]  # an engine may still hold a part of a push of the learner before
        self._names = (f"push {number} of {transport}" for number in count(1))

    @property
    def seconds(self) -> float:
        return self._expose_s + self.by_file.seconds

    @property
    def nbytes(self) -> int:
        return self._nbytes + self.by_file.nbytes

    @property
    def parts(self) -> Mapping[str, float]:
        return {"push_ipc": float(self._pushes_by_ipc)}

    def begin(self) -> None:
        self.by_file.begin()
        self._expose_s = 0.0
        self._nbytes = 0
        self._pushes_by_ipc = 0

    async def take(self, version: int, differs_from: str | None, *, full: bool = False) -> None:
        """Note the version; the weights are read from the learner when they are sent. A push is always `full`."""
        self.version = version
        self.begun = True
        self.digest = None
        self._must_differ_from = differs_from
        self._engines_reached.clear()
        self._file_version = None

    async def require_full_push(self) -> None:
        """Do nothing: a push is always full."""

    def remove(self) -> None:
        self.by_file.remove()

    async def send(self, engines: list[RemoteEngine], canary: Canary) -> Results:
        """Bring the push into each engine, by file into those that cannot map it or had it already.

        Raises:
            WeightsUnverified: The weights had to differ from the last push's, but do not. Errors of the learner are
                raised as they are.
        """
        outcomes: Outcomes = {}
        candidates = {
            i: engine
            for i, engine in enumerate(engines)
            if engine not in self._engines_by_file and engine not in self._engines_reached
        }
        if candidates and not self.disabled_reason:
            outcomes |= await self._try(candidates)
        if candidates and not self.disabled_reason:
            outcomes |= await self._expose(
                {i: e for i, e in candidates.items() if self._may_map(i, e, outcomes)}, canary
            )
        by_file = [i for i in range(len(engines)) if i not in outcomes]
        if by_file:
            results = await self._send_file([engines[i] for i in by_file], canary)
            outcomes |= dict(zip(by_file, results, strict=True))
        return [outcomes[i] for i in range(len(engines))]

    def _may_map(self, i: int, engine: RemoteEngine, outcomes: Outcomes) -> bool:
        return i not in outcomes and engine not in self._engines_by_file

    async def _try(self, engines: Mapping[int, RemoteEngine]) -> Outcomes:
        """Let engines that are new here map a few random bytes. Return the errors of those that are lost."""
        new = {i: engine for i, engine in engines.items() if engine not in self._engines_tried}
        if not new:
            return {}
        trial = await self.learner.expose_trial()
        if trial.fault:
            self._switch_off(f"the learner cannot share its device's memory: {trial.fault}")
            return {}
        outcomes = await self._map(new, trial)
        self._engines_tried.update(engine for i, engine in new.items() if self._may_map(i, engine, outcomes))
        return outcomes

    async def _map(self, engines: Mapping[int, RemoteEngine], exposed: Exposed) -> Outcomes:
        """Let engines map what is exposed. Note those that cannot, and return the errors of those that are lost."""
        calls = [engine.call(RolloutEngine.map_exposed, exposed, deadline=self.deadline) for engine in engines.values()]
        outcomes: Outcomes = {}
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for (i, engine), answer in zip(engines.items(), answers, strict=True):
            if isinstance(answer, BaseException):
                outcomes[i] = answer
            elif answer is not None:
                self._engines_by_file.add(engine)
                log.warning("weights go to %s by file from now on, and not through shared device memory: %s",
                            engine.name, answer)  # fmt: skip
        return outcomes

    async def _expose(self, engines: dict[int, RemoteEngine], canary: Canary) -> Outcomes:
        """Push to engines through shared memory. Engines without an outcome need a file."""
        if not engines:
            return {}
        push = next(self._names)
        exposed = await self._exposed(push, 0)
        if exposed.fault:
            self._switch_off(f"the learner cannot expose its weights: {exposed.fault}")
            return {}
        outcomes = await self._map(engines, exposed)
        loading = {i: engine for i, engine in engines.items() if self._may_map(i, engine, outcomes)}
        ahead: asyncio.Task[Exposed] | None = None
        try:
            digests: list[str] = []
            while loading:
                digests += [bucket.digest for bucket in exposed.buckets]
                if not exposed.remaining:
                    self._check_difference(push_digest(digests))
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
        self._engines_reached.update(engines[i] for i, outcome in outcomes.items() if isinstance(outcome, InfraError))
        return outcomes

    async def _load(
        self, loading: dict[int, RemoteEngine], exposed: Exposed, canary: Canary, outcomes: Outcomes
    ) -> None:
        """Let engines load what is exposed, and wait for all: their answers acknowledge it.

        Args:
            loading: The engines by position. Those that fail are removed.
            exposed: The buckets.
            canary: What the engines sample after the last bucket.
            outcomes: Receives errors, and after the last bucket what the engines sampled.
        """
        calls = [
            engine.call(RolloutEngine.load_exposed, exposed, self.version, canary, deadline=self.deadline)
            for engine in loading.values()
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for (i, engine), answer in zip(list(loading.items()), answers, strict=True):
            if isinstance(answer, BaseException):
                outcomes[i] = answer
                del loading[i]
            elif not exposed.remaining:
                outcomes[i] = answer
                self._engines_reached.add(engine)
                self._pushes_by_ipc += 1

    async def _exposed(self, push: str, first: int) -> Exposed:
        start = time.monotonic()
        exposed = await self.learner.expose(push, first)
        self._expose_s += time.monotonic() - start
        self._nbytes += sum(bucket.nbytes for bucket in exposed.buckets)
        return exposed

    def _check_difference(self, digest: str) -> None:
        """Note the digest of the push.

        Raises:
            WeightsUnverified: The weights had to differ from the last push's, but do not.
        """
        if digest == self._must_differ_from:
            raise WeightsUnverified(same_weights(self.version, digest))
        self._must_differ_from = None
        self.digest = digest

    async def _send_file(self, engines: list[RemoteEngine], canary: Canary) -> Results:
        """Push to engines by file, which is written at most once for each version."""
        if self._file_version != self.version:
            await self.by_file.take(self.version, self._must_differ_from, full=True)
            self._must_differ_from = None
            self._file_version = self.version
        if self.digest is None:
            self.digest = self.by_file.digest
        return await self.by_file.send(engines, canary)

    def _switch_off(self, reason: str) -> None:
        self.disabled_reason = reason
        log.warning("weights go by file from now on, and not through shared device memory: %s", reason)
