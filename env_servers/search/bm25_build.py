"""Build a BM25 index: the files that `bm25s.BM25.load` maps, in memory that does not grow with the postings.

    read      chunks of passages -> (word, passage, count) sorted by word, one temporary file per chunk
    place     with the document frequencies now known, the scores of every chunk go to their words' places in the
              mapped result

bm25s itself keeps all tokens and about six arrays over all postings in memory, several GiB for a million passages. The
scores are its "lucene" ones (a test compares both), with Lucene's k1 and b, as Search-R1's BM25 has them:

    score(w, d) = log(1 + (N - df + 0.5) / (df + 0.5)) * tf / (k1 (1 - b + b |d| / avg|d|) + tf)
"""

from __future__ import annotations

import json
import tempfile
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib.format import open_memmap

from openrlhf_tir.errors import DataError

from .corpus import passages
from .words import STOP_WORDS, split

K1 = 0.9
B = 0.4
CHUNK_WORDS = 4_000_000
"""Words per chunk, about 50 bytes of memory each."""
READ_SHARE = 0.8
"""Share of the time that reading takes, for the progress bar."""


class _Vocabulary(dict):
    """Id of each word, numbered in order of appearance; stop words have -1."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(STOP_WORDS, -1))

    def __missing__(self, word: str) -> int:
        self[word] = len(self) - len(STOP_WORDS)
        return self[word]


class _Read(NamedTuple):
    """What one pass over the corpus has read.

    Attributes:
        vocabulary: Id of each word, without stop words.
        offsets: [N] int64, start of each passage's line.
        lengths_N: [N] int32, words of each passage.
        df_V: [V] int64, number of passages that hold the word.
        chunks: Files of the postings.
    """

    vocabulary: dict[str, int]
    offsets: np.ndarray
    lengths_N: np.ndarray
    df_V: np.ndarray
    chunks: list[Path]


def build(corpus: Path, directory: Path, progress: Callable[[float], None] = lambda share: None) -> None:
    """Write the index of `corpus` into an empty directory. Raises DataError."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        read = _read(corpus, Path(scratch), lambda share: progress(share * READ_SHARE))
        if not read.vocabulary:
            raise DataError(
                f"Corpus {corpus} has {len(read.offsets)} passages and no word to search for."
                " Give a JSONL file with passages to --corpus."
            )
        _place(read, directory, lambda share: progress(READ_SHARE + share * (1 - READ_SHARE)))
    np.save(directory / "offsets.npy", read.offsets)
    params = {
        "k1": K1,
        "b": B,
        "method": "lucene",
        "dtype": "float32",
        "int_dtype": "int32",
        "num_docs": len(read.offsets),
    }
    (directory / "params.index.json").write_text(json.dumps(params))
    (directory / "vocab.index.json").write_text(json.dumps(read.vocabulary, ensure_ascii=False), encoding="utf-8")
    progress(1.0)


def _read(corpus: Path, scratch: Path, progress: Callable[[float], None]) -> _Read:
    """Read the corpus once and write its postings in chunks."""
    vocabulary = _Vocabulary()
    ids = array("i")
    chunks: list[Path] = []
    offsets = array("q")
    lengths = array("i")
    first = 0
    size = corpus.stat().st_size if corpus.exists() else 0
    lengths_parts = []
    df_V = np.zeros(0, np.int64)

    def flush(end: int) -> None:
        nonlocal first, df_V
        words, docs, counts, lengths_C = _count(np.frombuffer(ids, np.int32), np.frombuffer(lengths, np.int32))
        df_V = np.bincount(words, minlength=len(vocabulary) - len(STOP_WORDS)) + np.pad(
            df_V, (0, len(vocabulary) - len(STOP_WORDS) - len(df_V))
        )
        chunks.append(scratch / f"{len(chunks)}.npy")
        np.save(chunks[-1], np.stack([words, docs + first, counts]))
        lengths_parts.append(lengths_C)
        first += len(lengths_C)
        del ids[:], lengths[:]
        progress(end / size)

    for start, end, contents in passages(corpus):
        words = split(contents)
        offsets.append(start)
        lengths.append(len(words))
        ids.extend([vocabulary[w] for w in words])
        if len(ids) >= CHUNK_WORDS:
            flush(end)
    if lengths:
        flush(size)
    lengths_N = np.concatenate(lengths_parts) if lengths_parts else np.zeros(0, np.int32)
    word_ids = {word: i for word, i in vocabulary.items() if i >= 0}
    return _Read(word_ids, np.array(offsets, np.int64), lengths_N, df_V, chunks)


def _count(ids: np.ndarray, lengths_C: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Count the words of a chunk.

    Args:
        ids: Word ids of all passages, one after another; -1 for stop words.
        lengths_C: [C] words of each passage, stop words included.

    Returns:
        Words, passages and counts of the postings, sorted by word, then passage; and [C] lengths without stop words.
    """
    docs = np.repeat(np.arange(len(lengths_C), dtype=np.int64), lengths_C)
    docs = docs[ids >= 0]
    content_ids = ids[ids >= 0]
    pairs = (content_ids.astype(np.int64) << 32) | docs
    pairs.sort()
    starts = np.flatnonzero(np.diff(pairs, prepend=-1))
    counts = np.diff(starts, append=len(pairs)).astype(np.int32)
    unique = pairs[starts]
    return (
        (unique >> 32).astype(np.int32),
        unique.astype(np.int32),
        counts,
        np.bincount(docs, minlength=len(lengths_C)).astype(np.int32),
    )


def _place(read: _Read, directory: Path, progress: Callable[[float], None]) -> None:
    """Write the scores of all chunks to their places in the index."""
    n = len(read.offsets)
    df_V = read.df_V
    indptr = np.concatenate([[0], np.cumsum(df_V)])
    np.save(directory / "indptr.csc.index.npy", indptr)
    data = open_memmap(directory / "data.csc.index.npy", "w+", np.float32, (int(indptr[-1]),))
    indices = open_memmap(directory / "indices.csc.index.npy", "w+", np.int32, (int(indptr[-1]),))
    idf_V = np.log1p((n - df_V + 0.5) / (df_V + 0.5))
    norm_N = K1 * (1 - B + B * read.lengths_N / read.lengths_N.mean())
    heads_V = indptr[:-1].copy()
    for i, chunk in enumerate(read.chunks):
        words, docs, counts = np.load(chunk)
        per_word = np.bincount(words, minlength=len(df_V))
        first = np.cumsum(per_word) - per_word
        at = heads_V[words] + np.arange(len(words)) - first[words]
        data[at] = idf_V[words] * counts / (norm_N[docs] + counts)
        indices[at] = docs
        heads_V += per_word
        progress((i + 1) / len(read.chunks))
    data.flush()
    indices.flush()
