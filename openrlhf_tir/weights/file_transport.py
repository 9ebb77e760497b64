"""File transport: the learner writes a file, every engine's node proves it, the engine loads it.

With `delta` (vllm.sync_delta) the learner writes what changed, once there is a push to continue. A full one goes to an
engine that joins, to one whose node refuses the delta, after a resume or a restart of the learner, and when half of the
bytes changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from ..deadlines import Deadline
from ..errors import DeltaRefused
from ..ports import Learner
from ..types import Canary
from .push_files import PushFiles
from .transport import PushTarget, Results, in_time, name_of

log = logging.getLogger(__name__)


class FileTransport:
    def __init__(
        self,
        learner: Learner,
        directory: Path,
        *,
        delta: bool,
        deadline: Deadline,
        place: Callable[[], Path] | None = None,
    ) -> None:
        """`deadline`: for an engine's part of a push. `place`: the directory as of now, where it may change."""
        self._place = place or (lambda: directory)
        self.files, self.deadline = PushFiles(learner, directory, delta=delta), deadline

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

    def begin(self) -> None:
        self.files.seconds, self.files.nbytes = 0.0, 0

    async def take(self, version: int, differs_from: str | None, *, full: bool = False) -> None:
        self.files.move(self._place())
        await self.files.write(version, differs_from, full=full)

    async def whole(self) -> None:
        self.files.move(self._place())
        await self.files.whole()

    def remove(self) -> None:
        self.files.remove()

    async def sent(self, engines: list[PushTarget], canary: Canary) -> Results:
        """Full where there is a full file; else the delta, and in full to those that refuse it."""
        files = self.files
        if files.full is not None or files.changes is None:
            return await self._pushed(engines, await files.whole(), canary)
        results = await self._pushed(engines, files.changes[0], canary, files.changes[1])
        behind = [i for i, result in enumerate(results) if isinstance(result, DeltaRefused)]
        for i in behind:
            log.warning("%s gets version %d in full: %s", name_of(engines[i]), files.version, results[i])
        if not behind or len(behind) < len(engines):
            files.worth_it()
        else:
            files.not_worth_it()
        if behind:
            again = await self._pushed([engines[i] for i in behind], await files.whole(), canary)
            results = [dict(zip(behind, again, strict=True)).get(i, result) for i, result in enumerate(results)]
        return results

    async def _pushed(self, engines: list[PushTarget], path: Path, canary: Canary, *link: str) -> Results:
        version, digest = self.files.version, self.files.digest
        assert digest is not None, "take() comes first"
        pushes = [
            in_time(
                self.deadline,
                e.update_weights(path, version, digest, canary, *link),
                f"The push of version {version} to {name_of(e)}",
            )
            for e in engines
        ]
        return await asyncio.gather(*pushes, return_exceptions=True)
