"""The cache of prepared data. An entry is a directory whose name is a digest of everything that it was made from.

An entry of large data saves later starts from reading every row. Its name is made from the content of the data files,
the settings that decide how they are read, and the code that reads them, so an entry is never out of date: any change
gives another name. An entry appears whole or not at all (it is written elsewhere and renamed), and is removed when no
run has used it for `KEEP_DAYS`.

Small data is prepared again at every start and leaves nothing on disk.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import xxhash

from .rows import dataset_of, files_read, place_of

log = logging.getLogger(__name__)

CACHED_FROM_BYTES = 8 << 20
"""Smaller data is read in a second or two, so it is not cached."""
CACHED_FROM_ROWS = 20_000
"""The same for data sets that `datasets` reads, whose size is known in rows."""
KEEP_DAYS = 30
CHUNK_BYTES = 1 << 20


def cache_directory() -> Path | None:
    """Return the directory of the entries; None for a user without a home directory, as in some containers."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "openrlhf-tir"
    except RuntimeError:
        return None


def source_digest(source: str, split: str) -> str | None:
    """Return a digest of a data set's content; None if it is too small to be cached.

    Raises:
        ConfigError: The data set does not exist.
    """
    if place_of(source) == "datasets":
        data = dataset_of(source, split)
        return f"fingerprint {data._fingerprint}" if len(data) >= CACHED_FROM_ROWS else None
    files = files_read(source, split)
    if sum(file.stat().st_size for file in files) < CACHED_FROM_BYTES:
        return None
    hashing = xxhash.xxh3_128()
    for file in files:
        hashing.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as opened:
            while chunk := opened.read(CHUNK_BYTES):
                hashing.update(chunk)
    return hashing.hexdigest()


@functools.cache
def code_digest() -> str:
    """Return a digest of the code that reads and converts rows."""
    hashing = xxhash.xxh3_128()
    for file in code_files():
        hashing.update(file.read_bytes())
    return hashing.hexdigest()


def code_files() -> list[Path]:
    """Return the files of the code that reads and converts rows. Rewards read the answers in them."""
    package = Path(__file__).parents[1]
    folders = [*(package / "data").rglob("*.py"), *(package / "rewards").rglob("*.py")]
    return [*sorted(folders), package / "inert.py", package / "types.py"]


class Entry:
    """One entry of the cache, which may not exist yet.

    Args:
        directory: Directory of all entries; None for data that is not cached.
        kind: What the entry holds; its name begins with it.
        made_from: Everything that decides the entry's content, as JSON values.
    """

    def __init__(self, directory: Path | None, kind: str, made_from: Any) -> None:
        text = json.dumps([code_digest(), made_from], sort_keys=True, default=str)
        self.digest = xxhash.xxh3_128_hexdigest(text.encode())
        self.path = directory / f"{kind}-{self.digest}" if directory else None

    def existing(self) -> Path | None:
        """Return the entry's directory if an earlier start has made it, and mark it as used now."""
        if self.path is None or not self.path.is_dir():
            return None
        with suppress(OSError):  # The cache of another user is used too.
            os.utime(self.path)
        return self.path

    def make(self, write: Callable[[Path], None]) -> Path | None:
        """Make the entry by `write`, which gets an empty directory, and return its path.

        If the cache cannot be written, log a warning and return None: the run then works without it. Other errors of
        `write` are raised.
        """
        if self.path is None:
            return None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            remove_unused(self.path.parent)
            building = Path(tempfile.mkdtemp(prefix=".building-", dir=self.path.parent))
        except OSError as error:
            self._not_written(error)
            return None
        try:
            write(building)
            building.chmod(0o755)
            building.rename(self.path)
        except OSError as error:
            shutil.rmtree(building, ignore_errors=True)
            # Another run that starts at the same time may have made the same entry first.
            if (existing := self.existing()) is None:
                self._not_written(error)
            return existing
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        return self.path

    def _not_written(self, error: OSError) -> None:
        log.warning(
            "Prepared data cannot be kept in %s (%s), so that every start prepares it again. Set the environment"
            " variable XDG_CACHE_HOME to a directory that can be written, and HF_HOME to where your models are now.",
            self.path and self.path.parent,
            error.strerror or error,
        )


def remove_unused(directory: Path) -> None:
    """Remove the entries that no run has used for KEEP_DAYS, and what a killed process has left unfinished."""
    oldest = time.time() - KEEP_DAYS * 24 * 3600
    for path in directory.iterdir():
        with suppress(OSError):
            is_entry = path.is_dir() and path.name.startswith(("problems-", "prompts-", ".building-"))
            if is_entry and path.stat().st_mtime < oldest:
                shutil.rmtree(path, ignore_errors=True)


def tokenizer_digest(tokenizer: Any) -> str | None:
    """Return a digest of a tokenizer's vocabulary, rules and chat template; None if they are not accessible."""
    if tokenizer is None:
        return "none"
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    special = {key: str(value) for key, value in getattr(tokenizer, "special_tokens_map", {}).items()}
    settings = {
        key: value
        for key, value in getattr(tokenizer, "init_kwargs", {}).items()
        if isinstance(value, bool | int | float | str) and key not in ("name_or_path",)
    }
    template = getattr(tokenizer, "chat_template", None)
    # A template that writes today's date renders other prompts tomorrow.
    today = str(date.today()) if "strftime" in str(template) else None
    text = json.dumps([backend.to_str(), special, settings, template, today], sort_keys=True, default=str)
    return xxhash.xxh3_128_hexdigest(text.encode())
