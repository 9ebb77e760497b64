"""Manifest: what a checkpoint consists of, written last. Every file with its size and digest (XXH3-128: for accidents,
not for forgers).

write      hashes what the controller wrote; of what the learner's ranks wrote it takes their word and looks whether it
           is there
verify     everything is as it was written, or CheckpointDamaged names what is not; nothing is loaded before
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

from ...errors import CheckpointDamaged, CheckpointFailed

FILE = "manifest.json"
FORMAT = 2
BLOCK = 1 << 22
LARGE = 1 << 26
"""Bytes. A file of this size is hashed once per process while its inode, size and times stay: rewriting it takes longer
than a clock tick."""
READERS = 8
SAID = 5
"""How many files are named; there may be thousands."""


def flush(path: Path) -> None:
    """A file's content, or a directory's entries, are on disk when this returns."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def digest(path: Path) -> tuple[int, str]:
    """Returns (bytes, XXH3-128) of a file."""
    facts = path.stat()
    if facts.st_size >= LARGE:
        return facts.st_size, _of_large(path, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    return facts.st_size, _of(path)


@lru_cache(maxsize=4096)
def _of_large(path: Path, *identity: int) -> str:
    return _of(path)


def _of(path: Path) -> str:
    hashing = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            hashing.update(block)
    return hashing.hexdigest()


def write(directory: Path, name: str, facts: Mapping[str, Any], written: Mapping[str, tuple[int, str]]) -> int:
    """`name` is what the directory will be called; `written`: path -> (bytes, digest) of files that others wrote.
    Returns the bytes of all files.

    Raises CheckpointFailed when one of those cannot be seen from here.
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
    (directory / FILE).write_text(json.dumps({**body, "self": _self(body)}, indent=1))
    return sum(size for size, _ in files.values())


def verify(directory: Path) -> dict[str, Any]:
    """Compares every file with the manifest, and returns the manifest. Raises CheckpointDamaged."""
    manifest = _read(directory)
    with ThreadPoolExecutor(READERS) as pool:
        wrong = [
            said for said in pool.map(lambda item: _difference(directory, *item), manifest["files"].items()) if said
        ]
    if wrong:
        more = f"; and {len(wrong) - SAID} files more" if len(wrong) > SAID else ""
        raise CheckpointDamaged(f"{directory} is damaged: {'; '.join(wrong[:SAID])}{more}.")
    return manifest


def size(directory: Path) -> int:
    """Bytes of all files of a verified checkpoint."""
    return sum(size for size, _ in _read(directory)["files"].values())


def _read(directory: Path) -> dict[str, Any]:
    if not directory.is_dir():
        raise CheckpointDamaged(f"{directory} is not there.")
    if not (directory / FILE).exists():
        if (directory / "replay.pkl").exists():
            raise CheckpointDamaged(
                f"{directory} was written by an earlier version of this program: it has a replay.pkl, a pickle, which"
                f" could run any code, and no {FILE}. It cannot be resumed; go on from the model that its run exported."
            )
        raise CheckpointDamaged(f"{directory} is damaged: {FILE} is missing.")
    try:
        manifest: dict[str, Any] = json.loads((directory / FILE).read_text())
        checksum = manifest.pop("self")
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as e:
        raise CheckpointDamaged(f"{directory} is damaged: {FILE} cannot be read ({type(e).__name__}: {e}).") from e
    if checksum != _self(manifest):
        raise CheckpointDamaged(f"{directory} is damaged: {FILE} was changed since it was written.")
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


def _difference(directory: Path, name: str, facts: list[Any]) -> str | None:
    path, (size, checksum) = directory / name, facts
    try:
        if not path.is_file():
            return f"{name} is {'no file any more' if path.exists() else 'missing'}"
        if (seen := path.stat().st_size) != size:
            return f"{name} has {seen} bytes of {size}"
        return f"{name} was changed since it was written" if digest(path)[1] != checksum else None
    except OSError as e:
        return f"{name} cannot be read ({e.strerror})"


def _self(body: dict[str, Any]) -> str:
    return xxhash.xxh3_128(json.dumps(body, sort_keys=True).encode()).hexdigest()
