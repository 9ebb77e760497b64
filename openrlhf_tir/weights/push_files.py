"""Push files: what the learner writes for the engines. One directory; the last push is in it, in full, or what changed
in it, or both.

write(version)   the learner's weights are the last push from now on; the files of the one before are removed
whole()          the last push in full, which an engine that cannot continue from the one before needs
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from ..errors import InfraError, WeightsUnverified
from ..ports import Learner
from ..sizes import room
from ..types import DeltaDigest
from .transport import same_weights

SHARED_MEMORY = Path("/dev/shm")
SPARE = "spare"
"""The file of an earlier push, for the next to be written over."""
MAX_SKIPPED = 64
"""Full pushes, at most, until a delta is tried again that was not worth it."""
T = TypeVar("T")


def push_directory(run_dir: Path, model_bytes: int | None, *, one_node: bool = True) -> Path:
    """Where the file goes: shared memory when it holds two of them (old and new), else the run's directory; and that
    when the size is not known (None).

    With engines on several nodes it is always the run's directory, which all of them must see."""
    fits = (
        model_bytes is not None
        and one_node
        and SHARED_MEMORY.is_dir()
        and shutil.disk_usage(SHARED_MEMORY).free >= 2 * model_bytes
    )
    name = f"tir_weights_{run_dir.name}_{hashlib.sha256(str(run_dir).encode()).hexdigest()[:8]}"
    return (SHARED_MEMORY if fits else run_dir) / name


class PushFiles:
    def __init__(self, learner: Learner, directory: Path, *, delta: bool) -> None:
        """`delta`: what changed is written where that is possible and worth it."""
        self.learner, self.directory, self.delta = learner, directory, delta
        self.version = 0
        self.digest: str | None = None
        """The digest of the last push's weights; None before the first."""
        self.full: Path | None = None
        """The last push's file; None where only what changed was written."""
        self.changes: tuple[Path, str] | None = None
        """What changed, and its link; None where it was written in full at once."""
        self.seconds, self.nbytes = 0.0, 0
        """What writing took, since whoever asks set them to 0."""
        self._skip = self._skipped = 0

    async def write(self, version: int, differs_from: str | None, *, full: bool = False) -> None:
        """Write the learner's weights as the next push. Raises WeightsUnverified if their digest is `differs_from`,
        InfraError when a disk refuses."""
        if self.digest is None:  # a process that was killed could not remove its last file
            shutil.rmtree(self.directory, ignore_errors=True)
        changes = None if full else await self._changes(version)
        path = self.directory / (f"v{version}.safetensors" if changes is None else f"v{version}.delta")
        digest = changes.digest if changes else await self._written(version, path, lambda: self.learner.publish(path))
        if digest == differs_from:
            raise WeightsUnverified(same_weights(version, digest))
        old = {file for file in (self.full, self.changes and self.changes[0]) if file and file != path}
        self.full, self.changes = (None, (path, changes.link)) if changes else (path, None)
        self.version, self.digest = version, digest
        for file in old:  # before an engine is told: a node's copy may be this very file, and is changed in place
            self._give_up(file)

    async def whole(self) -> Path:
        """The learner still has these weights. Raises WeightsUnverified when it has not."""
        if self.full is None:
            path = self.directory / f"v{self.version}.safetensors"
            digest = await self._written(self.version, path, lambda: self.learner.publish(path))
            if digest != self.digest:
                raise WeightsUnverified(
                    f"The weights of version {self.version} have digest {digest[:12]} in full, and had"
                    f" {str(self.digest)[:12]} as a delta: the learner stepped meanwhile, or its memory is damaged."
                )
            self.full = path
        return self.full

    def not_worth_it(self) -> None:
        """The delta was too large, or not taken: the next 1, 2, 4, ... pushes are full until it is tried again."""
        self._skipped = min(MAX_SKIPPED, 2 * self._skipped or 1)
        self._skip = self._skipped

    def worth_it(self) -> None:
        self._skipped = 0

    def move(self, directory: Path) -> None:
        """Write there from now on, which is seen where the directory before is not: the last push too, when it is next
        asked for in full. All have loaded it."""
        if directory != self.directory:
            self.remove()
            self.directory, self.full, self.changes = directory, None, None

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def _give_up(self, file: Path) -> None:
        """A file of an earlier push, which every engine has loaded or is given up. The next full push is written over
        it, where it can be nobody's copy."""
        if self.delta or not file.exists():
            file.unlink(missing_ok=True)
        else:
            file.replace(self.directory / SPARE)

    async def _changes(self, version: int) -> DeltaDigest | None:
        if not self.delta or self.digest is None:
            return None
        if self._skip:
            self._skip -= 1
            return None
        path = self.directory / f"v{version}.delta"
        changes = await self._written(version, path, lambda: self.learner.publish_changes(path, self.version))
        if changes is None:
            self.not_worth_it()
        return changes

    async def _written(self, version: int, path: Path, write: Callable[[], Awaitable[T]]) -> T:
        start = time.monotonic()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            made = await write()
            self.nbytes += path.stat().st_size if path.exists() else 0
        except OSError as e:
            raise InfraError(
                f"The weights of version {version} could not be written for the engines: {e};"
                f" in {self.directory} {room(self.directory)}."
            ) from e
        finally:
            self.seconds += time.monotonic() - start
        return made
