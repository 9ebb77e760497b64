"""The list of a checkpoint's files, with size and digest of each. It is the last file that is written.

    write     hashes what the controller wrote; for the files of the learner ranks it takes their digests, and checks
              that it sees the files
    verify    compares every file with the list, before anything is loaded

The digest is XXH3-128: it finds accidents, and does not keep out forgers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import xxhash

from ...errors import CheckpointDamaged, CheckpointFailed, Problem

FILE = "manifest.json"
FORMAT = 3
BLOCK = 1 << 22
LARGE_BYTES = 1 << 26
"""A file of this size is hashed once per process as long as its inode, size and times stay the same: rewriting it takes
longer than a tick of the file system's clock."""
READERS = 8
MAX_NAMED = 5
"""Damaged files that an error names; there may be thousands."""


def flush(path: Path) -> None:
    """Write a file's content, or a directory's entries, to disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def digest(path: Path) -> tuple[int, str]:
    """Return size in bytes and XXH3-128 of a file."""
    status = path.stat()
    if status.st_size >= LARGE_BYTES:
        identity = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        return status.st_size, _hash_of_large(path, *identity)
    return status.st_size, _hash_of(path)


@lru_cache(maxsize=4096)
def _hash_of_large(path: Path, *identity: int) -> str:
    return _hash_of(path)


def _hash_of(path: Path) -> str:
    hashing = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            hashing.update(block)
    return hashing.hexdigest()


def write(directory: Path, name: str, facts: Mapping[str, Any], written: Mapping[str, tuple[int, str]]) -> int:
    """Write the manifest of a directory.

    Args:
        directory: The directory of the checkpoint.
        name: The name that the directory will get.
        facts: More entries of the manifest.
        written: Path -> (bytes, digest) of files that the learner ranks wrote.

    Returns:
        The bytes of all files together.

    Raises:
        CheckpointFailed: A file of the ranks cannot be seen from here.
    """
    files: dict[str, tuple[int, str]] = {}
    for path, (size, checksum) in written.items():
        seen = Path(path).stat().st_size if Path(path).is_file() else None
        if seen != size:
            here = "is not there" if seen is None else f"has {seen} bytes"
            raise CheckpointFailed(
                f"A learner rank wrote {size} bytes to {path}; for the controller it {here}. "
                "run_dir must be one directory for all nodes: put it on a shared file system."
            )
        files[str(Path(path).relative_to(directory))] = (size, checksum)
    own = [
        p
        for p in sorted(directory.rglob("*"))
        if p.is_file() and p.name != FILE and str(p.relative_to(directory)) not in files
    ]
    files |= {str(p.relative_to(directory)): digest(p) for p in own}
    body = {"format": FORMAT, "name": name, **facts, "files": {file: list(files[file]) for file in sorted(files)}}
    (directory / FILE).write_text(json.dumps({**body, "self": _digest_of(body)}, indent=1))
    return sum(size for size, _ in files.values())


def verify(directory: Path) -> dict[str, Any]:
    """Compare every file with the manifest, and return the manifest.

    Raises:
        CheckpointDamaged: Names the files that differ; its code is that of the first.
    """
    manifest = _read(directory)
    with ThreadPoolExecutor(READERS) as pool:
        differences = pool.map(lambda item: _difference(directory, *item), manifest["files"].items())
        wrong = [difference for difference in differences if difference]
    if wrong:
        more = f"; and {len(wrong) - MAX_NAMED} files more" if len(wrong) > MAX_NAMED else ""
        named = "; ".join(problem.message for problem in wrong[:MAX_NAMED])
        raise CheckpointDamaged(f"{directory} is damaged: {named}{more}.", code=wrong[0].code)
    return manifest


def size(directory: Path) -> int:
    """Return the bytes of all files of a verified checkpoint."""
    return sum(size for size, _ in _read(directory)["files"].values())


def _read(directory: Path) -> dict[str, Any]:
    """Return the manifest of a directory, without its own digest. Raises CheckpointDamaged."""
    if not directory.is_dir():
        raise CheckpointDamaged(f"{directory} is not there.", code="file_missing")
    if not (directory / FILE).exists():
        raise CheckpointDamaged(f"{directory} is damaged: {FILE} is missing.", code="file_missing")
    try:
        manifest: dict[str, Any] = json.loads((directory / FILE).read_text())
        checksum = manifest.pop("self")
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as e:
        raise CheckpointDamaged(f"{directory} is damaged: {FILE} cannot be read ({type(e).__name__}: {e}).") from e
    if checksum != _digest_of(manifest):
        raise CheckpointDamaged(
            f"{directory} is damaged: {FILE} was changed since it was written.", code="file_changed"
        )
    if manifest["format"] != FORMAT:
        raise CheckpointDamaged(
            f"{directory} has format {manifest['format']}, this program reads {FORMAT}."
            " Resume with the version that wrote it."
        )
    if manifest["name"] != directory.name:
        raise CheckpointDamaged(
            f"{directory} is damaged: its {FILE} is that of {manifest['name']}. A checkpoint keeps its name."
        )
    return manifest


def _difference(directory: Path, name: str, entry: list[Any]) -> Problem | None:
    """Return how a file differs from its entry, as a clause and a code; None if it does not."""
    path = directory / name
    expected_size, checksum = entry
    try:
        if not path.is_file():
            return Problem(f"{name} is {'no longer a file' if path.exists() else 'missing'}", code="file_missing")
        actual_size = path.stat().st_size
        if actual_size != expected_size:
            return Problem(f"{name} has {actual_size} bytes of {expected_size}", code="file_size")
        if digest(path)[1] != checksum:
            return Problem(f"{name} was changed since it was written", code="file_changed")
        return None
    except OSError as e:
        return Problem(f"{name} cannot be read ({e.strerror})", code=CheckpointDamaged.reason)


def _digest_of(body: dict[str, Any]) -> str:
    return xxhash.xxh3_128(json.dumps(body, sort_keys=True).encode()).hexdigest()
