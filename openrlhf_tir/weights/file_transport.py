"""Push weights by file: the learner writes it, every engine's node checks its digest, the engine loads it.

With `delta` (vllm.sync_backend = delta) the learner writes only what changed, as soon as there is a push to continue.
A full push goes to an engine that joins and to one whose node refuses the delta. All engines get one after a resume or
a restart of the learner, and if more than half of the bytes changed.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from ..errors import DeltaRefused, InfraError, WeightsUnverified
from ..machine.sizes import room
from ..ports import Learner, RemoteEngine, RolloutEngine
from ..pushes import Canary, DeltaDigest
from ..waiting.deadlines import Deadline
from .push_files import SPARE
from .transport import Results, Transport, same_weights

log = logging.getLogger(__name__)
MAX_SKIPPED = 64
"""Most full pushes in a row before a delta is tried again after one that was too large."""
T = TypeVar("T")


class FileTransport(Transport):
    """Pushes by files in one directory.

    The directory contains the last push: as a full file, as a delta of the push before, or as both. `take` replaces it
    and removes the files of the push before. `write_full` adds the full file, for engines that cannot apply the delta.
    """

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
        super().__init__()
        self.learner = learner
        self.directory = directory
        self.deltas = delta
        self.deadline = deadline
        self._current_directory = place or (lambda: directory)
        self.full: Path | None = None
        """The last push's full file; None if only a delta was written."""
        self.changes: tuple[Path, str] | None = None
        """The last push's delta file and its link; None if it was written in full at once."""
        self._full_pushes_left = 0
        """Full pushes until a delta is tried again."""
        self._backoff = 0
        """Length of the last such series; it doubles with each delta that was too large."""

    @property
    def delta(self) -> bool:
        return self.full is None

    async def require_full_push(self) -> None:
        self._move()
        await self.write_full()

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

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
            self._backoff = 0  # the delta was useful
        else:
            self._back_off_deltas()
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

    async def take(self, version: int, differs_from: str | None, *, full: bool = False) -> None:
        """Write the learner's weights as the next push.

        Raises:
            WeightsUnverified: The weights have the digest `differs_from`.
            InfraError: The disk is full or failed.
        """
        self._move()
        if not self.begun:
            self.remove()  # what a process that was killed has left
        changes = None if full else await self._write_delta(version)
        path = self.directory / (f"v{version}.safetensors" if changes is None else f"v{version}.delta")
        digest = changes.digest if changes else await self._measured(version, path, lambda: self.learner.publish(path))
        if digest == differs_from:  # before anything is noted: the push before stays the last one
            raise WeightsUnverified(same_weights(version, digest))
        await super().take(version, None)
        self._note_digest(digest)
        old = {file for file in (self.full, self.changes and self.changes[0]) if file and file != path}
        self.full = None if changes else path
        self.changes = (path, changes.link) if changes else None
        # This comes before any engine hears of the push: a node's copy may be the old file itself, and a delta changes
        # the copy in place.
        for file in old:
            self._retire(file)

    async def write_full(self) -> Path:
        """Write the last push in full if that was not done yet, and return the file.

        Raises:
            WeightsUnverified: The learner has other weights by now, or its memory is damaged.
            InfraError: The disk is full or failed.
        """
        if self.full is None:
            path = self.directory / f"v{self.version}.safetensors"
            digest = await self._measured(self.version, path, lambda: self.learner.publish(path))
            if digest != self.digest:
                raise WeightsUnverified(
                    f"The weights of version {self.version} have digest {digest[:12]} in full, and had"
                    f" {str(self.digest)[:12]} as a delta: the learner stepped meanwhile, or its memory is damaged."
                )
            self.full = path
        return self.full

    def _back_off_deltas(self) -> None:
        """Note that the delta was too large or was refused by all: the next 1, 2, 4, ... pushes are full."""
        self._backoff = min(MAX_SKIPPED, 2 * self._backoff or 1)
        self._full_pushes_left = self._backoff

    def _move(self) -> None:
        """Write into another directory from now on if engines may run on nodes that do not see the old one.

        The files of the last push are removed, since every engine has loaded them. `write_full` writes it again.
        """
        directory = self._current_directory()
        if directory != self.directory:
            self.remove()
            self.directory = directory
            self.full = None
            self.changes = None

    def _retire(self, file: Path) -> None:
        """Remove a file of an earlier push, or keep it for the next full push to overwrite.

        No engine needs it any more. With deltas it may be a node's copy, so it must not be overwritten.
        """
        if self.deltas or not file.exists():
            file.unlink(missing_ok=True)
        else:
            file.replace(self.directory / SPARE)

    async def _write_delta(self, version: int) -> DeltaDigest | None:
        """Write a delta file; return None if the push has to be written in full."""
        if not self.deltas or not self.begun:
            return None
        if self._full_pushes_left:
            self._full_pushes_left -= 1
            return None
        path = self.directory / f"v{version}.delta"
        changes = await self._measured(version, path, lambda: self.learner.publish_changes(path, self.version))
        if changes is None:
            self._back_off_deltas()
        return changes

    async def _measured(self, version: int, path: Path, write: Callable[[], Awaitable[T]]) -> T:
        """Await `write`, which writes `path`, and add its time and the file's size to the counters.

        Raises:
            InfraError: The disk is full or failed.
        """
        start = time.monotonic()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            result = await write()
            self.nbytes += path.stat().st_size if path.exists() else 0
        except OSError as error:
            raise InfraError(
                f"The weights of version {version} could not be written for the engines: {error};"
                f" in {self.directory} {room(self.directory)}."
            ) from error
        finally:
            self.seconds += time.monotonic() - start
        return result
