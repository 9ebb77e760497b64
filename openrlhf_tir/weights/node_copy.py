"""Prove what a push brought to this node once for all engines on it, and keep the copy that deltas change.

    full(path)    checks the digest of a pushed file; with deltas on, the node keeps a copy of it
    delta(path)   applies the changes to the node's copy, in place, and checks the digest of the whole copy

The engines of a node take turns under a file lock. The first one does the work and leaves a note of what it proved; the
others read the note. An engine that gets no turn in time, because another one hangs, checks a full push by itself and
refuses a delta. So a hung engine costs only its own work.

The note is removed before a byte of the copy is changed, and written after the whole copy was hashed again. If a
process dies in between, nobody uses its copy, and the node asks for a full push. Note and copy are in the node's shared
memory, or in its temporary directory if it has none, in a room that exists as long as one of its engines
(node_rooms.py). What killed engines left is removed when the next engine starts.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from ..errors import DeltaRefused, WeightsUnverified
from ..machine.files import replace_text
from ..machine.sizes import size
from .delta import Piece, apply, compile_apply, integers, inverse, prepare
from .delta_file import Damaged, Delta
from .digest import ChunkHash, Entry, chunks, combine, digest_file, entries, hashing_threads, map_file, tensor_hash
from .node_rooms import PREFIX, Room, sweep
from .push_files import SHARED_MEMORY

log = logging.getLogger(__name__)
NOTE = "proved.json"
COPY = "copy.safetensors"
PATIENCE_S = 60.0
"""Seconds that an engine waits for its turn."""


class NodeCopy:
    """One engine's access to its node's copy. The methods block: call them in a thread, with a deadline."""

    def __init__(self, *, keep: bool, root: Path | None = None, patience_s: float = PATIENCE_S) -> None:
        """Remove what killed engines left on this node.

        Args:
            keep: Keep a copy of full pushes, to which deltas can be applied.
            root: The directory for rooms; default: the node's shared memory.
            patience_s: Seconds to wait for the other engines of the node.
        """
        self.keep = keep
        self.patience_s = patience_s
        self.root = root or (SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir()))
        self._room: Room | None = None
        self._mapped: tuple[tuple[int, ...], np.ndarray] | None = None
        """Identity of the copy that is mapped to memory, and its bytes."""
        sweep(self.root)

    def full(self, path: Path, version: int, digest: str) -> Path:
        """Return a file with the announced digest, for the engine to load: the pushed file, or the node's copy of it.

        Args:
            path: The pushed file.
            version: Its version.
            digest: The announced digest.

        Raises:
            WeightsUnverified: The file has another digest, or is incomplete or not visible here.
        """
        self._mapped = None  # a new copy takes the old one's place
        with self._turn(path) as here:
            if here is None:
                return _check_digest(path, path, version, digest)
            note = _read_note(here)
            source = _identity(path)
            if note.get("digest") == digest and note.get("source") == source:
                return _prepare_for_delta(here / COPY) if note["copy"] else path
            _remove_note(here)
            copy = self._copy_push(path, here) if self.keep else None
            try:
                proved = _check_digest(copy or path, path, version, digest, self._map_for_hashing if copy else map_file)
            except WeightsUnverified:
                if copy:
                    copy.unlink()
                raise
            _write_note(here, version, digest, source=source, copy=copy is not None)
            return _prepare_for_delta(proved) if copy else proved

    def delta(self, path: Path, version: int, digest: str, link: str) -> Path:
        """Apply a delta to the node's copy and return the copy, for the engine to load.

        Args:
            path: The delta file.
            version: The version after it.
            digest: The announced digest of the weights after it.
            link: The announced link.

        Raises:
            DeltaRefused: The delta cannot be applied here. The engine's own weights are unchanged.
        """
        what = f"The delta of version {version}, {path},"
        with self._turn(path) as here:
            if here is None:
                raise DeltaRefused(
                    f"{what} needs this node's copy of the weights, which another engine of the node has locked."
                )
            note = _read_note(here)
            if note.get("copy") and note["digest"] == digest:
                return here / COPY
            delta = Delta(path)
            if not note.get("copy"):
                raise DeltaRefused(
                    f"{what} continues version {delta.base_version}, but this node has no proved copy of the weights.",
                    code="no_copy",
                )
            if delta.base != note["digest"]:
                raise DeltaRefused(
                    f"{what} continues version {delta.base_version} (digest {delta.base[:12]}), but this node has"
                    f" version {note['version']} (digest {note['digest'][:12]}): a delta was skipped, or this is an"
                    " older one."
                )
            if (delta.digest, delta.link) != (digest, link):
                raise DeltaRefused(
                    f"{what} is damaged: its link is {delta.link[:12]}, but the learner announced {link[:12]}."
                )
            try:
                _remove_note(here)
                received = _apply_delta(self._map_writable(here / COPY), delta)
            except Damaged as error:
                # _apply_delta has undone its changes, so the copy should be what it was.
                if digest_file(here / COPY, self._map_for_hashing) == note["digest"]:
                    _write_note(here, note["version"], note["digest"], source=None, copy=True)
                else:
                    self._discard(here / COPY)
                raise DeltaRefused(f"{what} is damaged: {error}.") from error
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._discard(here / COPY)
                raise DeltaRefused(f"{what} cannot be applied: {error}.") from error
            if received != digest:
                self._discard(here / COPY)
                raise DeltaRefused(
                    f"{what} gives weights of digest {received[:12]}, but the learner announced {digest[:12]}:"
                    " the copy was damaged."
                )
            _write_note(here, version, digest, source=None, copy=True)
            return here / COPY

    def remove(self) -> None:
        """Remove the room. Another engine of the node that still gets pushes will need a full one."""
        self._mapped = None
        if self._room is not None:
            self._room.remove()

    def _map_writable(self, copy: Path) -> np.ndarray:
        """Map the copy to memory for writing, [bytes] uint8.

        It stays mapped until the next full push, because mapping all of its pages takes as long as applying a delta.
        """
        with open(copy, "r+b") as f:
            stat = os.fstat(f.fileno())
            identity = (stat.st_dev, stat.st_ino, stat.st_size)
            if self._mapped is None or self._mapped[0] != identity:
                self._mapped = None
                # MAP_POPULATE maps all pages at once. One by one, at the first write to each, takes five times as long.
                memory = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
                self._mapped = identity, np.frombuffer(memory, np.uint8)
            return self._mapped[1]

    def _map_for_hashing(self, copy: Path) -> np.ndarray:
        """Map the copy to memory for reading, but writable where possible, so that the next delta finds it mapped."""
        try:
            return self._map_writable(copy)
        except OSError:
            return map_file(copy)  # a read-only copy can be loaded; deltas will be refused

    def _discard(self, copy: Path) -> None:
        """Remove a copy whose content is not known to be right."""
        self._mapped = None
        copy.unlink(missing_ok=True)

    @contextmanager
    def _turn(self, path: Path) -> Iterator[Path | None]:
        """Lock this node's room for pushes from the directory of `path`, and yield it.

        It yields None if the room cannot be locked within `patience_s`.

        Raises:
            WeightsUnverified: The room belongs to another user.
        """
        name = hashlib.sha256(str(path.parent.resolve()).encode()).hexdigest()[:16]
        here = self.root / f"{PREFIX}{os.geteuid()}_{name}"
        if self._room is None or self._room.here != here:
            if self._room is not None:
                self._room.leave()
            self._room = Room(here)
        # The lock has to be flock, which the kernel releases when a process dies.
        lock = FileLock(here / "lock", timeout=self.patience_s, fallback_to_soft=False)
        try:
            here.mkdir(mode=0o700, parents=True, exist_ok=True)
            if here.stat().st_uid != os.geteuid():
                raise WeightsUnverified(
                    f"{here}, where this node keeps pushed weights, belongs to another user. Remove it."
                )
            self._room.hold(self.patience_s)
            lock.acquire()
        except OSError as error:  # includes filelock's Timeout
            log.warning("Cannot lock %s (%s): this engine checks the push by itself.", here, error)
            yield None
            return
        try:
            yield here
        finally:
            lock.release()

    def _copy_push(self, path: Path, here: Path) -> Path | None:
        """Copy the pushed file into the room, or link it if it is in this node's memory.

        Returns None, with a warning in the log, if there is not enough space.
        """
        copy = here / COPY
        copy.unlink(missing_ok=True)
        # A file on a shared file system is not linked: another node could link it too, and both would patch it.
        if path.resolve().is_relative_to(self.root.resolve()):
            with suppress(OSError):
                os.link(path, copy)
                return copy
        try:
            need = path.stat().st_size
            free = shutil.disk_usage(here).free
            if free >= need:
                shutil.copyfile(path, copy)
                return copy
            reason = f"it needs {size(need)}, and {size(free)} are free"
        except OSError as error:
            copy.unlink(missing_ok=True)
            reason = str(error)
        log.warning("This node keeps no copy of the weights in %s: %s. It needs full pushes.", here, reason)
        return None


def _prepare_for_delta(copy: Path) -> Path:
    """Start to compile what the next delta needs in the background, and return the copy."""
    prepare(compile_apply, {e.dtype for e in entries(map_file(copy))})
    return copy


def _check_digest(
    file: Path, pushed: Path, version: int, digest: str, open_file: Callable[[Path], np.ndarray] = map_file
) -> Path:
    """Return `file`, which is `pushed` or a copy of it, if its digest is the announced one.

    Raises:
        WeightsUnverified: It is not, or the file is incomplete.
    """
    received = digest_file(file, open_file)
    if received != digest:
        raise WeightsUnverified(
            f"{pushed} has digest {received[:12]}, but the learner announced {digest[:12]} for version {version}."
            " Push again."
        )
    return file


def _apply_delta(data: np.ndarray, delta: Delta) -> str:
    """Apply a delta to the copy, in place, and return the digest of the result.

    Several threads patch and hash a chunk each, while later parts of the delta are still read from the disk. What a
    piece changed is hashed while it is in the core's cache, up to the begin of the next piece: a piece changes nothing
    before its own begin.

    Args:
        data: The copy, [bytes] uint8.
        delta: The delta, which continues the copy's weights.

    Raises:
        Damaged: A part of the file is damaged. All changes were undone.
        ValueError: The delta does not fit the copy, whose content is then unknown.
    """
    tensors = entries(data)
    if unknown := delta.tensors - {e.name for e in tensors}:
        raise ValueError(f"it changes {sorted(unknown)[0]}, which is not among the weights")

    changed: list[tuple[np.ndarray, list[tuple[int, Piece]]]] = []
    """For each chunk its elements, and its pieces with the element at which each begins."""

    def patch_chunk(entry: Entry, part: slice) -> bytes:
        """Patch a chunk and return its hash."""
        chunk = data[entry.begin : entry.end][part]
        hasher = ChunkHash()
        hashed_until = 0
        pieces = delta.pieces(entry.name, part, entry.dtype)
        integer = integers(entry.dtype)
        changed.append((chunk.view(integer), [(begin // integer.itemsize, piece) for begin, piece in pieces]))
        for begin, piece in pieces:
            hasher.update(chunk[hashed_until:begin].data)
            apply(piece, chunk[begin:].view(integer))
            hashed_until = begin
        hasher.update(chunk[hashed_until:].data)
        return hasher.digest()

    try:
        with hashing_threads() as pool:
            futures = {e: [pool.submit(patch_chunk, e, part) for part in chunks(e.end - e.begin)] for e in tensors}
            return combine(
                {e.name: tensor_hash(e.dtype, e.shape, [f.result() for f in parts]) for e, parts in futures.items()}
            )
    except Damaged:
        # No thread runs any more: the pool was shut down when its block ended.
        for chunk, pieces in changed:
            for begin, piece in pieces:
                apply(inverse(piece), chunk[begin:])
        raise


def _identity(path: Path) -> list[int]:
    """Return numbers that change when the file changes.

    Raises:
        WeightsUnverified: This node does not see the file.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise WeightsUnverified(
            f"{path} is not a complete safetensors file: {error}. Check that writing it finished and that this node"
            " sees it."
        ) from error
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns]


def _read_note(here: Path) -> dict[str, Any]:
    """Return what was proved: version, digest, source and whether there is a copy. Empty if nothing was."""
    try:
        note = json.loads((here / NOTE).read_text())
        return note if not note["copy"] or (here / COPY).exists() else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _remove_note(here: Path) -> None:
    (here / NOTE).unlink(missing_ok=True)


def _write_note(here: Path, version: int, digest: str, *, source: list[int] | None, copy: bool) -> None:
    """Note what was proved. If it cannot be written, the other engines of the node check the push by themselves.

    Args:
        here: The room.
        version: The version.
        digest: Its digest.
        source: Identity of the pushed file that was checked; None after a delta.
        copy: True if the node has a copy.
    """
    note = {"version": version, "digest": digest, "source": source, "copy": copy}
    try:
        replace_text(here / NOTE, json.dumps(note))
    except OSError as error:
        log.warning("Cannot write %s (%s): every engine of this node checks the push by itself.", here / NOTE, error)
