"""The files that the learner writes for the engines, in one directory.

The directory contains the last push: as a full file, as a delta of the push before, or as both. `write` replaces the
last push by the learner's weights and removes the files of the push before. `write_full` adds the full file, for
engines that cannot apply the delta.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from ..errors import InfraError, WeightsUnverified
from ..machine.sizes import room
from ..ports import Learner
from ..pushes import DeltaDigest
from .transport import same_weights

SHARED_MEMORY = Path("/dev/shm")
SPARE = "spare"
"""Name of the file of an earlier push that the next full push overwrites."""
MAX_SKIPPED = 64
"""Most full pushes in a row before a delta is tried again after one that was too large."""
T = TypeVar("T")


def push_directory(run_dir: Path, model_bytes: int | None, *, one_node: bool = True) -> Path:
    """Return the directory for the files of a run's pushes.

    It is in shared memory if that has space for two files, the old and the new one. Otherwise it is in the run's
    directory; also if the size is unknown, and if engines run on several nodes, which must all see the directory.

    Args:
        run_dir: The run's directory.
        model_bytes: Size of a full push in bytes; None if unknown.
        one_node: True if all engines run on the learner's node.
    """
    fits = (
        model_bytes is not None
        and one_node
        and SHARED_MEMORY.is_dir()
        and shutil.disk_usage(SHARED_MEMORY).free >= 2 * model_bytes
    )
    name = f"tir_weights_{run_dir.name}_{hashlib.sha256(str(run_dir).encode()).hexdigest()[:8]}"
    return (SHARED_MEMORY if fits else run_dir) / name


class PushFiles:
    """The last push on disk."""

    def __init__(self, learner: Learner, directory: Path, *, deltas: bool) -> None:
        """Create an empty state; nothing is written yet.

        Args:
            learner: Writes the weights.
            directory: Where it writes them.
            deltas: Write only what changed, where that is possible and saves enough.
        """
        self.learner = learner
        self.directory = directory
        self.deltas = deltas
        self.version = 0
        self.digest: str | None = None
        """The digest of the last push's weights; None before the first."""
        self.full: Path | None = None
        """The last push's full file; None if only a delta was written."""
        self.changes: tuple[Path, str] | None = None
        """The last push's delta file and its link; None if it was written in full at once."""
        self.seconds = 0.0
        """Seconds spent on writing since they were reset."""
        self.nbytes = 0
        """Bytes written since they were reset."""
        self._full_pushes_left = 0
        """Full pushes until a delta is tried again."""
        self._backoff = 0
        """Length of the last such series; it doubles with each delta that was too large."""

    async def write(self, version: int, differs_from: str | None, *, full: bool = False) -> None:
        """Write the learner's weights as the next push.

        Args:
            version: Number of learner updates behind the weights.
            differs_from: A digest that the weights must not have; None: any will do.
            full: Do not write a delta.

        Raises:
            WeightsUnverified: The weights have the digest `differs_from`.
            InfraError: The disk is full or failed.
        """
        if self.digest is None:
            # A process that was killed could not remove its last file.
            shutil.rmtree(self.directory, ignore_errors=True)
        changes = None if full else await self._write_delta(version)
        path = self.directory / (f"v{version}.safetensors" if changes is None else f"v{version}.delta")
        digest = changes.digest if changes else await self._measured(version, path, lambda: self.learner.publish(path))
        if digest == differs_from:
            raise WeightsUnverified(same_weights(version, digest))
        old = {file for file in (self.full, self.changes and self.changes[0]) if file and file != path}
        self.full = None if changes else path
        self.changes = (path, changes.link) if changes else None
        self.version = version
        self.digest = digest
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

    def back_off_deltas(self) -> None:
        """Note that the delta was too large or was refused by all: the next 1, 2, 4, ... pushes are full."""
        self._backoff = min(MAX_SKIPPED, 2 * self._backoff or 1)
        self._full_pushes_left = self._backoff

    def reset_backoff(self) -> None:
        """Note that a delta was useful."""
        self._backoff = 0

    def move(self, directory: Path) -> None:
        """Write into another directory from now on, because engines may run on nodes that do not see the old one.

        The files of the last push are removed, since every engine has loaded them. `write_full` writes it again.
        """
        if directory != self.directory:
            self.remove()
            self.directory = directory
            self.full = None
            self.changes = None

    def remove(self) -> None:
        """Remove all files."""
        shutil.rmtree(self.directory, ignore_errors=True)

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
        if not self.deltas or self.digest is None:
            return None
        if self._full_pushes_left:
            self._full_pushes_left -= 1
            return None
        path = self.directory / f"v{version}.delta"
        changes = await self._measured(version, path, lambda: self.learner.publish_changes(path, self.version))
        if changes is None:
            self.back_off_deltas()
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
