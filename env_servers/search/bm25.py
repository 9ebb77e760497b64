"""BM25 over a corpus file, by bm25s. The index is built once, kept beside the corpus, and mapped into memory.

DIR/ready.json   version of the index, size and time of its corpus; if they differ it is built again
DIR/*            files that `bm25_build` writes
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from openrlhf_tir.errors import ConfigError

from . import bm25_build
from .corpus import Corpus
from .searches import Stop, Stopped, never
from .words import STOP_WORDS, split

VERSION = 1
"""Version of the index's format."""
BLOCK = 1024
"""Scores of one block of `top`."""
WORDS_AT_ONCE = 32
"""Words that are scored between two checks whether the caller still waits: about 50 ms over a million passages."""


class Hit(NamedTuple):
    """A passage that a search found.

    Attributes:
        document: The passage's row of the corpus.
        score: Its score; larger is better.
        number: Its number, for `Retriever.document`.
    """

    document: dict[str, Any]
    score: float
    number: int = -1


class Retriever(ABC):
    """Finds passages for a query."""

    _corpus: Corpus

    @abstractmethod
    def search(self, query: str, k: int, stop: Stop = never) -> list[Hit]:
        """Return at most `k` passages, best first. Called from several threads. Raises Stopped when `stop()` is
        true."""

    def document(self, number: int) -> dict[str, Any]:
        """Return a passage's row of the corpus."""
        return self._corpus[number]

    def __len__(self) -> int:
        """Return the number of passages."""
        return len(self._corpus)


def ensure_index(corpus: Path, directory: Path, progress: Callable[[float], None] = lambda share: None) -> bool:
    """Build the index if it is missing or of another corpus. Return True if it was built.

    It is built in a temporary directory and renamed, so an index is complete or absent.

    Raises:
        DataError: The corpus is malformed.
        ConfigError: The directory cannot be written, or holds something else.
    """
    if _is_current(corpus, directory):
        return False
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
    except OSError as e:
        raise writing_error(directory, e) from e
    try:
        built_from = _fingerprint(corpus) if corpus.exists() else None
        bm25_build.build(corpus, temporary, progress)
        (temporary / "ready.json").write_text(json.dumps(built_from))
        temporary.chmod(0o755)
        if not _is_current(corpus, directory):  # false if another server was quicker
            _remove_old(directory)
            os.rename(temporary, directory)
        return True
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def writing_error(directory: Path, error: OSError) -> ConfigError:
    """Return the error of a directory that takes no index."""
    return ConfigError(
        f"No index can be written to {directory}: {error.strerror}. Give a writable directory to --index."
    )


def _fingerprint(corpus: Path) -> dict[str, int]:
    """Return what an index must have been built from to be usable."""
    stat = corpus.stat()
    return {"version": VERSION, "corpus_bytes": stat.st_size, "corpus_mtime_ns": stat.st_mtime_ns}


def _is_current(corpus: Path, directory: Path) -> bool:
    ready = directory / "ready.json"
    return corpus.exists() and ready.exists() and json.loads(ready.read_text()) == _fingerprint(corpus)


def _remove_old(directory: Path) -> None:
    """Remove an old index. Raises ConfigError if the directory holds something else."""
    if not directory.exists():
        return
    if any(directory.iterdir()) and not (directory / "ready.json").exists():
        raise ConfigError(f"{directory} holds files that are not an index. Give an empty or new directory to --index.")
    shutil.rmtree(directory)


class Bm25(Retriever):
    """A retriever over an index that `ensure_index` has built."""

    def __init__(self, corpus: Path, directory: Path) -> None:
        """Map the index into memory."""
        import bm25s

        self._index = bm25s.BM25.load(directory, mmap=True, show_progress=False)
        self._corpus = Corpus(corpus, np.load(directory / "offsets.npy", mmap_mode="r"))

    def search(self, query: str, k: int, stop: Stop = never) -> list[Hit]:
        """Return the passages with the best scores above 0. Unknown words and stop words of the query do not count.

        Raises:
            Stopped: `stop` returned True.
        """
        vocabulary = self._index.vocab_dict
        ids = [vocabulary[word] for word in split(query) if word not in STOP_WORDS and word in vocabulary]
        if not ids or k < 1:
            return []
        scores_N = self._index.get_scores_from_ids(ids[:WORDS_AT_ONCE])
        for i in range(WORDS_AT_ONCE, len(ids), WORDS_AT_ONCE):
            if stop():
                raise Stopped
            scores_N = scores_N + self._index.get_scores_from_ids(ids[i : i + WORDS_AT_ONCE])
        return [Hit(self._corpus[i], float(scores_N[i]), i) for i in top(scores_N, k).tolist()]


def top(scores_N: np.ndarray, k: int) -> np.ndarray:
    """Return the numbers of the `k` best positive scores, best first, ties by number. Shape [<= k].

    A partial sort takes a quarter of a second over a million scores that are nearly all 0. The k-th largest of the
    blocks' maxima is a bound that at least k scores reach and few exceed.
    """
    blocks_end = len(scores_N) // BLOCK * BLOCK
    maxima = scores_N[:blocks_end].reshape(-1, BLOCK).max(axis=1)
    bound = np.partition(maxima, -k)[-k] if len(maxima) >= k else 0.0
    candidates = np.flatnonzero((scores_N >= bound) & (scores_N > 0))
    return candidates[np.lexsort((candidates, -scores_N[candidates]))[:k]]
