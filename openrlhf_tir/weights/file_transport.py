"""Push weights by file: the learner writes it, every engine's node checks its digest, the engine loads it.

With `delta` (vllm.sync_delta) the learner writes only what changed, as soon as there is a push to continue. A full push
goes to an engine that joins and to one whose node refuses the delta. All engines get one after a resume or a restart of
the learner, and if more than half of the bytes changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import DeltaRefused
from ..ports import Learner, RemoteEngine, RolloutEngine
from ..pushes import Canary
from ..waiting.deadlines import Deadline
from .push_files import PushFiles
from .transport import Results

log = logging.getLogger(__name__)


class FileTransport(PushFiles):
    """Implements `transport.Transport` with files."""

    def __init__(
        self,
        learner: Learner,
        directory: Path,
        *,
        delta: bool,
        deadline: Deadline,
        place: Callable[[], Path] | None = None,
    ) -> None:
        """Create a transport; nothing is written yet.

        Args:
            learner: Writes the files.
            directory: Where it writes them.
            delta: Write only what changed, where that is possible and saves enough.
            deadline: Deadline of an engine's part of a push.
            place: Returns the directory to use now, if it can change during the run. Default: always `directory`.
        """
        super().__init__(learner, directory, deltas=delta)
        self._current_directory = place or (lambda: directory)
        self.deadline = deadline

    @property
    def begun(self) -> bool:
        return self.digest is not None

    @property
    def delta(self) -> bool:
        return self.full is None

    @property
    def parts(self) -> Mapping[str, float]:
        return {}

    def begin(self) -> None:
        self.seconds = 0.0
        self.nbytes = 0

    async def take(self, version: int, differs_from: str | None, *, full: bool = False) -> None:
        self.move(self._current_directory())
        await self.write(version, differs_from, full=full)

    async def require_full_push(self) -> None:
        self.move(self._current_directory())
        await self.write_full()

    async def send(self, engines: list[RemoteEngine], canary: Canary) -> Results:
        """Push the full file if there is one. Otherwise push the delta, and the full file to those that refuse it."""
        if self.full is not None or self.changes is None:
            return await self._push(engines, await self.write_full(), canary)
        path, link = self.changes
        results = await self._push(engines, path, canary, link)
        refused = [i for i, result in enumerate(results) if isinstance(result, DeltaRefused)]
        for i in refused:
            log.warning("%s gets version %d in full: %s", engines[i].name, self.version, results[i])
        if not refused or len(refused) < len(engines):
            self.reset_backoff()
        else:
            self.back_off_deltas()
        if refused:
            repeated = await self._push([engines[i] for i in refused], await self.write_full(), canary)
            for i, result in zip(refused, repeated, strict=True):
                results[i] = result
        return results

    async def _push(self, engines: list[RemoteEngine], path: Path, canary: Canary, link: str | None = None) -> Results:
        """Let every engine load a file at once. With a `link` it is a delta."""
        version = self.version
        digest = self.digest
        assert digest is not None, "take() comes first"
        pushes = [
            engine.call(RolloutEngine.update_weights, path, version, digest, canary, link, deadline=self.deadline)
            for engine in engines
        ]
        return await asyncio.gather(*pushes, return_exceptions=True)
