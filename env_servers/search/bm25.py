"""BM25 over a corpus file by bm25s: (query, k) -> the k best passages. The index is mapped, built once and kept beside
the corpus.

DIR/ready.json   what it was built from; another size or time of the corpus means that it is built again
DIR/*            what `bm25_build` writes
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from openrlhf_tir.errors import ConfigError

from . import bm25_build
from .corpus import Corpus
from .searches import Stop, Stopped, never
from .words import STOP_WORDS, split

VERSION = 1
BLOCK = 1024
WORDS_AT_ONCE = 32
"""Scored between two looks at whether anybody still waits: over a million passages some 50 ms."""


class Hit(NamedTuple):
    document: dict[str, Any]
    """The passage's row of the corpus."""
    score: float
    number: int = -1
    """The passage's, by which `Retriever.document` gives it again."""


class Retriever(Protocol):
    def search(self, query: str, k: int, stop: Stop = never) -> list[Hit]:
        """At most `k` passages, best first. Called from several threads. Raises Stopped when `stop()` says so."""

    def document(self, number: int) -> dict[str, Any]:
        """The passage's row of the corpus."""

    def __len__(self) -> int:
        """The number of passages."""


def ensure_index(corpus: Path, directory: Path, progress: Callable[[float], None] = lambda share: None) -> bool:
    """Whether it had to be built. Complete or absent: built aside and renamed. Raises DataError, ConfigError."""
    if _is_current(corpus, directory):
        return False
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
    except OSError as e:
        raise ConfigError(
            f"No index can be written to {directory}: {e.strerror}. Give a writable directory to --index."
        ) from e
    try:
        built_from = _facts(corpus) if corpus.exists() else None
        bm25_build.build(corpus, aside, progress)
        (aside / "ready.json").write_text(json.dumps(built_from))
        aside.chmod(0o755)
        if not _is_current(corpus, directory):  # or another server was quicker
            _remove_old(directory)
            os.rename(aside, directory)
        return True
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _facts(corpus: Path) -> dict[str, int]:
    stat = corpus.stat()
    return {"version": VERSION, "corpus_bytes": stat.st_size, "corpus_mtime_ns": stat.st_mtime_ns}


def _is_current(corpus: Path, directory: Path) -> bool:
    ready = directory / "ready.json"
    return corpus.exists() and ready.exists() and json.loads(ready.read_text()) == _facts(corpus)


def _remove_old(directory: Path) -> None:
    if not directory.exists():
        return
    if any(directory.iterdir()) and not (directory / "ready.json").exists():
        raise ConfigError(f"{directory} holds files that are no index. Give an empty or new directory to --index.")
    shutil.rmtree(directory)


class Bm25:
    def __init__(self, corpus: Path, directory: Path) -> None:
        """`directory` as `ensure_index` left it."""
        import bm25s

        self._index = bm25s.BM25.load(directory, mmap=True, show_progress=False)
        self._corpus = Corpus(corpus, np.load(directory / "offsets.npy", mmap_mode="r"))

    def __len__(self) -> int:
        return len(self._corpus)

    def document(self, number: int) -> dict[str, Any]:
        return self._corpus[number]

    def search(self, query: str, k: int, stop: Stop = never) -> list[Hit]:
        known = self._index.vocab_dict
        ids = [known[w] for w in split(query) if w not in STOP_WORDS and w in known]
        if not ids or k < 1:
            return []
        scores_N = self._index.get_scores_from_ids(ids[:WORDS_AT_ONCE])
        for i in range(WORDS_AT_ONCE, len(ids), WORDS_AT_ONCE):
            if stop():
                raise Stopped
            scores_N = scores_N + self._index.get_scores_from_ids(ids[i : i + WORDS_AT_ONCE])
        return [Hit(self._corpus[i], float(scores_N[i]), i) for i in top(scores_N, k).tolist()]


def top(scores_N: np.ndarray, k: int) -> np.ndarray:
    """[<= k] numbers of the best positive scores, best first, ties in order.

    A partial sort takes a quarter of a second over a million scores that are nearly all 0. The k-th best of the blocks'
    maxima is a bound that at least k scores reach and few exceed.
    """
    whole = len(scores_N) // BLOCK * BLOCK
    maxima = scores_N[:whole].reshape(-1, BLOCK).max(axis=1)
    bound = np.partition(maxima, -k)[-k] if len(maxima) >= k else 0.0
    reach = np.flatnonzero((scores_N >= bound) & (scores_N > 0))
    return reach[np.lexsort((reach, -scores_N[reach]))[:k]]
