"""Dense retrieval by a sentence-transformers model such as E5: passages by inner product of normalised embeddings.

Embeddings are computed once, kept beside the corpus and mapped into memory. The search is exact, one matrix-vector
product. For several million passages on a CPU use BM25.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.format import open_memmap

from openrlhf_tir.errors import ConfigError

from .bm25 import Hit, Retriever, writing_error
from .corpus import Corpus, passages, reading_error
from .searches import Stop, never

if TYPE_CHECKING:
    from .encoder import Encoder

BATCH = 256
"""Passages that are embedded together."""
QUERY = "query: "
PASSAGE = "passage: "
"""Prefixes with which E5 models were trained. Other models name theirs in their prompts, or have none."""


class Dense(Retriever):
    """A retriever by embeddings."""

    def __init__(
        self, corpus: Path, directory: Path, model: str, progress: Callable[[float], None] = lambda share: None
    ) -> None:
        """Load the model, and embed the corpus if that has not been done.

        Raises:
            ConfigError: The model cannot be used, or the index cannot be written.
            DataError: The corpus cannot be read, or is malformed.
        """
        try:
            stat = corpus.stat()
        except OSError as e:
            raise reading_error(corpus, e) from e
        self._model = _load(model)
        prompts = self._model.prompts
        e5 = (QUERY, PASSAGE) if "e5" in Path(model).name.lower() else ("", "")
        self._prefixes = prompts.get("query", e5[0]), prompts.get("document", prompts.get("passage", e5[1]))
        ready = directory / "dense.json"
        fingerprint = {"model": model, "corpus_bytes": stat.st_size, "corpus_mtime_ns": stat.st_mtime_ns}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if not ready.exists() or json.loads(ready.read_text()) != fingerprint:
                ready.unlink(missing_ok=True)
                self._embed(corpus, directory, progress)
                ready.write_text(json.dumps(fingerprint))
        except OSError as e:
            raise writing_error(directory, e) from e
        self._vectors_ND = np.load(directory / "dense.npy", mmap_mode="r")
        self._corpus = Corpus(corpus, np.load(directory / "dense_offsets.npy"))

    def search(self, query: str, k: int, stop: Stop = never) -> list[Hit]:
        """Return the best passages. A query is one forward pass and one product, so `stop` is never checked."""
        vector_D = self._encode([self._prefixes[0] + query])[0]
        scores_N = self._vectors_ND @ vector_D
        k = min(k, len(scores_N))
        best = np.argpartition(scores_N, len(scores_N) - k)[len(scores_N) - k :]
        return [Hit(self._corpus[i], float(scores_N[i]), i) for i in best[np.lexsort((best, -scores_N[best]))].tolist()]

    def _encode(self, texts: list[str]) -> np.ndarray:
        return self._model.encode(texts)

    def _embed(self, corpus: Path, directory: Path, progress: Callable[[float], None]) -> None:
        """Embed all passages in batches and write the embeddings beside the corpus."""
        offsets = np.array([start for start, _, _ in passages(corpus)], np.int64)
        vectors_ND = None
        done = 0
        batch = []
        partial = directory / "dense.npy.partial"
        for _, _, contents in passages(corpus):
            batch.append(self._prefixes[1] + contents)
            if len(batch) < BATCH and done + len(batch) < len(offsets):
                continue
            encoded = self._encode(batch)
            if vectors_ND is None:
                vectors_ND = open_memmap(partial, "w+", np.float32, (len(offsets), encoded.shape[1]))
            vectors_ND[done : done + len(batch)] = encoded
            done = done + len(batch)
            batch = []
            progress(done / len(offsets))
        if vectors_ND is None:
            raise ConfigError(f"Corpus {corpus} has no passages. Give a JSONL file with passages to --corpus.")
        vectors_ND.flush()
        os.replace(partial, directory / "dense.npy")
        np.save(directory / "dense_offsets.npy", offsets)


def _load(model: str) -> Encoder:
    from .encoder import Encoder

    return Encoder(model)
