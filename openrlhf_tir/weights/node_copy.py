"""Node copy: what a push brought to this node, proved once for all engines on it.

    full(path)    the file's digest is that which was announced; with deltas on, the node keeps it
    delta(path)   what changed -> the copy that the node keeps, in place; then the digest of the whole copy

Engines of a node take turns under a file lock: the first does the work and leaves a note of what it proved, the others
read the note. Whoever gets no turn in time, because an engine beside it hangs, proves a full push for itself and
refuses a delta: a hung engine costs its own work only. The note is removed before a byte of the copy is touched and
written when all of it was hashed again: a process that dies in between leaves a copy that nobody uses, and the node
asks for a full push. Both lie in the node's own shared memory (its temporary directory, where it has none), in a room
that lasts as long as one of its engines (node_rooms.py): what killed ones left goes when the next engine starts."""

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
from ..sizes import size
from .delta import Piece, apply, compile_apply, integers, inverse, prepare
from .delta_file import Damaged, Delta
from .digest import ChunkHash, Entry, chunks, combine, digest_file, entries, hashing_threads, mapped, tensor_hash
from .node_rooms import PREFIX, Room, sweep

log = logging.getLogger(__name__)
SHARED_MEMORY = Path("/dev/shm")
NOTE, COPY = "proved.json", "copy.safetensors"
PATIENCE_S = 60.0


class NodeCopy:
    """One per engine. Blocks: to be called from a thread, with a deadline."""

    def __init__(self, *, keep: bool, root: Path | None = None, patience_s: float = PATIENCE_S) -> None:
        """`keep`: a copy that deltas continue. `root`: the node's own directory; its shared memory if not given.
        `patience_s`: for an engine beside it."""
        self.keep, self.patience_s = keep, patience_s
        self.root = root or (SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir()))
        self._room: Room | None = None
        self._mapped: tuple[tuple[int, ...], np.ndarray] | None = None
        sweep(self.root)

    def full(self, path: Path, version: int, digest: str) -> Path:
        """A file with the announced digest, to be loaded. Raises WeightsUnverified."""
        self._mapped = None  # another copy takes its place
        with self._turn(path) as here:
            if here is None:
                return _announced(path, path, version, digest)
            note, source = _note(here), _identity(path)
            if note.get("digest") == digest and note.get("source") == source:
                return _ready(here / COPY) if note["copy"] else path
            _forget(here)
            kept = self._take(path, here) if self.keep else None
            try:
                proved = _announced(kept or path, path, version, digest, self._at_hand if kept else mapped)
            except WeightsUnverified:
                if kept:
                    kept.unlink()
                raise
            _prove(here, version, digest, source=source, copy=kept is not None)
            return _ready(proved) if kept else proved

    def delta(self, path: Path, version: int, digest: str, link: str) -> Path:
        """The node's copy with the changes in `path`, to be loaded. Raises DeltaRefused, an engine's weights are then
        what they were."""
        what = f"The delta of version {version}, {path},"
        with self._turn(path) as here:
            if here is None:
                raise DeltaRefused(
                    f"{what} needs the copy that this node keeps, which an engine beside this one holds."
                )
            note = _note(here)
            if note.get("copy") and note["digest"] == digest:
                return here / COPY
            delta = Delta(path)
            if not note.get("copy"):
                raise DeltaRefused(
                    f"{what} continues version {delta.base_version}, and this node keeps no proved copy of the weights."
                )
            if delta.base != note["digest"]:
                raise DeltaRefused(
                    f"{what} continues version {delta.base_version} (digest {delta.base[:12]}), this node keeps version"
                    f" {note['version']} (digest {note['digest'][:12]}): a delta was left out, or this is an older one."
                )
            if (delta.digest, delta.link) != (digest, link):
                raise DeltaRefused(
                    f"{what} is damaged: its link is {delta.link[:12]}, the learner announced {link[:12]}."
                )
            try:
                _forget(here)
                received = _patched(self._bytes(here / COPY), delta)
            except Damaged as e:  # what was changed until then was changed back
                if digest_file(here / COPY, self._at_hand) == note["digest"]:
                    _prove(here, note["version"], note["digest"], source=None, copy=True)
                else:
                    self._lose(here / COPY)
                raise DeltaRefused(f"{what} is damaged: {e}.") from e
            except (OSError, ValueError, KeyError, TypeError) as e:
                self._lose(here / COPY)
                raise DeltaRefused(f"{what} cannot be applied: {e}.") from e
            if received != digest:
                self._lose(here / COPY)
                raise DeltaRefused(
                    f"{what} gives weights of digest {received[:12]}, the learner announced {digest[:12]}:"
                    " the copy was damaged."
                )
            _prove(here, version, digest, source=None, copy=True)
            return here / COPY

    def remove(self) -> None:
        """The room is given back. An engine beside this one that is still pushed to is given a full push."""
        self._mapped = None
        if self._room is not None:
            shutil.rmtree(self._room.here, ignore_errors=True)
            self._room.leave()

    def _bytes(self, copy: Path) -> np.ndarray:
        """The copy's, [n] uint8, to be changed. They stay in this process's address space until the next full push: to
        map all of their pages anew takes as long as a delta's whole work on them."""
        with open(copy, "r+b") as f:
            found = os.fstat(f.fileno())
            which = (found.st_dev, found.st_ino, found.st_size)
            if self._mapped is None or self._mapped[0] != which:
                self._mapped = None
                # all pages at once: one by one, when they are written to, takes five times as long
                memory = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
                self._mapped = which, np.frombuffer(memory, np.uint8)
            return self._mapped[1]

    def _at_hand(self, copy: Path) -> np.ndarray:
        """`_bytes`, to be hashed: that maps their pages too, so that the next delta need not."""
        try:
            return self._bytes(copy)
        except OSError:  # it may be read, and deltas will be refused
            return mapped(copy)

    def _lose(self, copy: Path) -> None:
        self._mapped = None
        copy.unlink(missing_ok=True)

    @contextmanager
    def _turn(self, path: Path) -> Iterator[Path | None]:
        """The node's directory for pushes from that of `path`, which no other process uses meanwhile; None where it
        cannot be had within `patience_s`.
        Raises WeightsUnverified for one of somebody else's."""
        name = hashlib.sha256(str(path.parent.resolve()).encode()).hexdigest()[:16]
        here = self.root / f"{PREFIX}{os.geteuid()}_{name}"
        if self._room is None or self._room.here != here:
            if self._room is not None:
                self._room.leave()
            self._room = Room(here)
        # flock: a process that dies gives it back
        lock = FileLock(here / "lock", timeout=self.patience_s, fallback_to_soft=False)
        try:
            here.mkdir(mode=0o700, parents=True, exist_ok=True)
            if here.stat().st_uid != os.geteuid():
                raise WeightsUnverified(
                    f"{here}, where this node keeps what a push brought, belongs to another user. Remove it."
                )
            self._room.hold(self.patience_s)
            lock.acquire()
        except OSError as e:  # filelock's Timeout is one
            log.warning("%s cannot be had (%s): this engine proves the push for itself.", here, e)
            yield None
            return
        try:
            yield here
        finally:
            lock.release()

    def _take(self, path: Path, here: Path) -> Path | None:
        """The pushed file, under a name of the node's own: the same file where it lies in the node's own memory, else a
        copy. None where there is no room."""
        copy = here / COPY
        copy.unlink(missing_ok=True)
        # elsewhere another node may have linked it too, and each would patch it
        if path.resolve().is_relative_to(self.root.resolve()):
            with suppress(OSError):
                os.link(path, copy)
                return copy
        try:
            need, free = path.stat().st_size, shutil.disk_usage(here).free
            if free >= need:
                shutil.copyfile(path, copy)
                return copy
            why = f"it needs {size(need)}, and {size(free)} are free"
        except OSError as e:
            copy.unlink(missing_ok=True)
            why = str(e)
        log.warning("this node keeps no copy of the weights in %s: %s. It takes full pushes only.", here, why)
        return None


def _ready(copy: Path) -> Path:
    """The copy, which the next push may change: what that needs is compiled meanwhile."""
    prepare(compile_apply, {e.dtype for e in entries(mapped(copy))})
    return copy


def _announced(file: Path, pushed: Path, version: int, digest: str, of: Callable[[Path], np.ndarray] = mapped) -> Path:
    """`file`, which is `pushed` or a copy of it, once its digest is the announced one. Raises WeightsUnverified."""
    received = digest_file(file, of)
    if received != digest:
        raise WeightsUnverified(
            f"{pushed} has digest {received[:12]}, the learner announced {digest[:12]} for version {version}."
            " Push again."
        )
    return file


def _patched(data: np.ndarray, delta: Delta) -> str:
    """The digest of the copy, [bytes] uint8, with the changes, which were made in place. Each chunk is patched and
    hashed in one go, by several threads, while later parts of the delta are still read from a disk: what a piece has
    touched is hashed while it is in the core's cache, as far as the next piece, which touches nothing before its own
    beginning. Raises Damaged when a part is; the copy is what it was."""
    tensors = entries(data)
    if unknown := delta.tensors - {e.name for e in tensors}:
        raise ValueError(f"it changes {sorted(unknown)[0]}, which is not among the weights")

    changed: list[tuple[np.ndarray, list[tuple[int, Piece]]]] = []

    def patched(entry: Entry, part: slice) -> bytes:
        chunk, hashed, upto = data[entry.begin : entry.end][part], ChunkHash(), 0
        pieces = delta.pieces(entry.name, part, entry.dtype)
        of = integers(entry.dtype)
        changed.append((chunk.view(of), [(begin // of.itemsize, piece) for begin, piece in pieces]))
        for begin, piece in pieces:
            hashed.update(chunk[upto:begin].data)
            apply(piece, chunk[begin:].view(of))
            upto = begin
        hashed.update(chunk[upto:].data)
        return hashed.digest()

    try:
        with hashing_threads() as pool:
            futures = {e: [pool.submit(patched, e, part) for part in chunks(e.end - e.begin)] for e in tensors}
            return combine(
                {e.name: tensor_hash(e.dtype, e.shape, [f.result() for f in parts]) for e, parts in futures.items()}
            )
    except Damaged:  # the threads are through
        for chunk, pieces in changed:
            for begin, piece in pieces:
                apply(inverse(piece), chunk[begin:])
        raise


def _identity(path: Path) -> list[int]:
    """Changes with the file. Raises WeightsUnverified when this node does not see it."""
    try:
        found = path.stat()
    except OSError as e:
        raise WeightsUnverified(
            f"{path} is no complete safetensors file: {e}. Check that writing it finished and that this node sees it."
        ) from e
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]


def _note(here: Path) -> dict[str, Any]:
    """What was proved; empty when nothing is."""
    try:
        note = json.loads((here / NOTE).read_text())
        return note if not note["copy"] or (here / COPY).exists() else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _forget(here: Path) -> None:
    (here / NOTE).unlink(missing_ok=True)


def _prove(here: Path, version: int, digest: str, *, source: list[int] | None, copy: bool) -> None:
    """Without room for the note the engines beside this one prove what comes for themselves."""
    partial = here / f"{NOTE}.partial"
    try:
        partial.write_text(json.dumps({"version": version, "digest": digest, "source": source, "copy": copy}))
        os.replace(partial, here / NOTE)
    except OSError as e:
        log.warning("%s cannot be written (%s): every engine of this node proves the push for itself.", here / NOTE, e)
