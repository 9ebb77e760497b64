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


class FileTransport:
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
        self._current_directory = place or (lambda: directory)
        self.files = PushFiles(learner, directory, delta=delta)
        self.deadline = deadline

    @property
    def version(self) -> int:
        return self.files.version

    @property
    def digest(self) -> str | None:
        return self.files.digest

    @property
    def begun(self) -> bool:
        return self.files.digest is not None

    @property
    def delta(self) -> bool:
        return self.files.full is None

    @property
    def seconds(self) -> float:
        return self.files.seconds

    @property
    def nbytes(self) -> int:
        return self.files.nbytes

    @property
    def parts(self) -> Mapping[str, float]:
        return {}

    def begin(self) -> None:
        self.files.seconds = 0.0
        self.files.nbytes = 0

    async def take(self, version: int, differs_from: str | None, *, full: bool = False) -> None:
        self.files.move(self._current_directory())
        await self.files.write(version, differs_from, full=full)

    async def whole(self) -> None:
        self.files.move(self._current_directory())
        await self.files.write_full()

    def remove(self) -> None:
        self.files.remove()

    async def sent(self, engines: list[RemoteEngine], canary: Canary) -> Results:
        """Push the full file if there is one. Otherwise push the delta, and the full file to those that refuse it."""
        files = self.files
        if files.full is not None or files.changes is None:
            return await self._push(engines, await files.write_full(), canary)
        path, link = files.changes
        results = await self._push(engines, path, canary, link)
        refused = [i for i, result in enumerate(results) if isinstance(result, DeltaRefused)]
        for i in refused:
            log.warning("%s gets version %d in full: %s", engines[i].name, files.version, results[i])
        if not refused or len(refused) < len(engines):
            files.reset_backoff()
        else:
            files.back_off_deltas()
        if refused:
            repeated = await self._push([engines[i] for i in refused], await files.write_full(), canary)
            for i, result in zip(refused, repeated, strict=True):
                results[i] = result
        return results

    async def _push(self, engines: list[RemoteEngine], path: Path, canary: Canary, link: str | None = None) -> Results:
        """Let every engine load a file at once. With a `link` it is a delta."""
        version = self.files.version
        digest = self.files.digest
        assert digest is not None, "take() comes first"
        pushes = [
            engine.call(RolloutEngine.update_weights, path, version, digest, canary, link, deadline=self.deadline)
            for engine in engines
        ]
        return await asyncio.gather(*pushes, return_exceptions=True)
