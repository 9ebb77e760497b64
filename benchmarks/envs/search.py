"""python -m benchmarks.envs.search [--passages N]: BM25 over generated passages: time per query on one core, and
memory.

    generated JSONL -> index built -> queries in one thread, from a passage's own words -> p50, p99, peak memory of the
    process

Word frequencies are Zipf's with real stop words in front, as in English: a query's words then have realistic posting
lists. Peak memory counts mapped index pages as well, which the kernel may take back. The last line is JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.command import command_parser
from env_servers.progress import Progress
from env_servers.search.bm25 import Bm25, ensure_index
from env_servers.search.words import STOP_WORDS
from openrlhf_tir.cluster.process_watch import peak_rss_bytes

VOCABULARY = 300_000
WORDS = 100
"""Words of a passage, as many as in Search-R1's Wikipedia dump."""
QUERY_WORDS = 9
"""An average NQ question."""
CHUNK = 10_000


def write_corpus(path: Path, passages: int, seed: int = 0) -> None:
    """JSONL of `passages` passages, titles included."""
    rng = np.random.default_rng(seed)
    words = np.array([*sorted(STOP_WORDS), *(f"w{i:x}" for i in range(VOCABULARY - len(STOP_WORDS)))])
    share = 1 / np.arange(1, VOCABULARY + 1)
    cumulative = np.cumsum(share / share.sum())
    progress = Progress(f"writing {passages} passages")
    with path.open("w") as file:
        for first in range(0, passages, CHUNK):
            rows = min(CHUNK, passages - first)
            drawn = words[np.searchsorted(cumulative, rng.random((rows, WORDS))).clip(max=VOCABULARY - 1)]
            lines = (
                json.dumps({"id": str(first + i), "contents": f'"{row[0]} {row[1]}"\n{" ".join(row)}'})
                for i, row in enumerate(drawn)
            )
            file.write("\n".join(lines) + "\n")
            progress.update((first + rows) / passages)


def measure(passages: int, queries: int = 300) -> dict[str, float]:
    """Facts of one run; temporary files are removed."""
    with tempfile.TemporaryDirectory() as scratch:
        corpus, index = Path(scratch, "corpus.jsonl"), Path(scratch, "index")
        write_corpus(corpus, passages)
        start = time.perf_counter()
        ensure_index(corpus, index, Progress("indexing").update)
        build_s = time.perf_counter() - start
        retriever = Bm25(corpus, index)
        rng = np.random.default_rng(1)
        texts = [_query(retriever, rng) for _ in range(queries)]
        times = []
        for text in texts:
            start = time.perf_counter()
            hits = retriever.search(text, 3)
            times.append(time.perf_counter() - start)
            assert hits, f"nothing found for {text!r}, which a passage holds"
        index_mib = sum(f.stat().st_size for f in index.iterdir()) / 2**20
    return {
        "passages": passages,
        "search_p50_ms": round(1e3 * float(np.percentile(times, 50)), 2),
        "search_p99_ms": round(1e3 * float(np.percentile(times, 99)), 2),
        "search_build_s": round(build_s, 1),
        "search_index_mib": round(index_mib),
        "search_peak_mib": round((peak_rss_bytes(os.getpid()) or 0) / 2**20),
    }


def _query(retriever: Bm25, rng: np.random.Generator) -> str:
    words = retriever.document(int(rng.integers(len(retriever))))["contents"].split("\n")[1].split()
    return " ".join(rng.choice(words, QUERY_WORDS))


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--passages", type=int, default=1_000_000, metavar="N", help="(default: %(default)s)")
    args = parser.parse_args()
    if args.passages < 1:
        sys.exit(f"--passages {args.passages} leaves nothing to search. Use 1 or more.")
    print(json.dumps(measure(args.passages)))


if __name__ == "__main__":
    main()
