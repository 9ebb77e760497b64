"""python -m env_servers.search: serve a retriever over a JSONL corpus, as an environment and by Search-R1's API.

The BM25 index is built at the first start (with a progress bar) and kept beside the corpus; later starts map it into
memory.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fastapi import FastAPI

from env_servers.flags import command_parser
from env_servers.launch import add_serving_flags, serve, serving_config
from env_servers.processes import run_copies
from env_servers.progress import Progress
from env_servers.serving import create_env_app
from openrlhf_tir.errors import TirError

from .bm25 import Bm25, Retriever, ensure_index
from .env import ACTION, MAX_TOPK, SearchEnv, View
from .pages import PAGE_CHARS
from .retrieve import add_retrieve
from .searches import Searches

NAME = "search"
"""The environment's name, in /schema and in front of what a start that fails says."""
EXAMPLE = """
example:
  python -m env_servers.search --corpus wiki.jsonl --port 8200 &
  curl -s localhost:8200/retrieve -H 'content-type: application/json' \\
       -d '{"queries": ["who wrote Faust?"], "topk": 3, "return_scores": true}'
  -> {"result": [[{"document": {"id": "0", "contents": "\\"Faust\\"\\nFaust is ..."}, "score": 7.1}, ...]]}

corpus: one JSON object a line, {"id": "0", "contents": "\\"Title\\"\\nText"}.
"""


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    p = command_parser("env_servers.search", __doc__, EXAMPLE)
    add_serving_flags(p, workers=2)
    p.add_argument("--corpus", type=Path, required=True, metavar="FILE.jsonl", help="file with the passages")
    p.add_argument(
        "--index", type=Path, metavar="DIR", help="directory of the index (default: FILE.jsonl.bm25, or .dense)"
    )
    p.add_argument(
        "--topk",
        type=int,
        default=3,
        metavar="K",
        help="passages per query if the caller does not say (default: %(default)s)",
    )
    p.add_argument(
        "--snippet-chars",
        type=int,
        default=0,
        metavar="N",
        help="characters of a passage that a search shows; 0: all of it (default: %(default)s)",
    )
    p.add_argument(
        "--page-chars",
        type=int,
        default=PAGE_CHARS,
        metavar="N",
        help="characters of one page of an opened document (default: %(default)s, about 500 tokens)",
    )
    p.add_argument(
        "--retrieve-timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="deadline of one /retrieve, waiting included (default: %(default)s)",
    )
    p.add_argument(
        "--dense",
        metavar="MODEL",
        help="retrieve by this sentence-transformers model (e.g. intfloat/e5-base-v2) instead of BM25",
    )
    return p


def make_retriever(corpus: Path, index: Path | None, dense: str | None) -> Retriever:
    """Return the retriever of a corpus; its index is built if necessary.

    Args:
        corpus: The JSONL file.
        index: Directory of the index; None: beside the corpus.
        dense: A sentence-transformers model; None: BM25.

    Raises:
        ConfigError: The model cannot be used, or the index cannot be written.
        DataError: The corpus is malformed.
    """
    directory = index or corpus.with_name(f"{corpus.name}.{'dense' if dense else 'bm25'}")
    if dense:
        from .dense import Dense

        return Dense(corpus, directory, dense, Progress(f"embedding {corpus}").update)
    ensure_index(corpus, directory, Progress(f"indexing {corpus}").update)
    return Bm25(corpus, directory)


def create_search_app(retriever: Retriever, args: argparse.Namespace) -> FastAPI:
    """Return the app of the environment, with /retrieve."""
    config = serving_config(args, env=NAME, action=ACTION, stateful=True)
    searches = Searches(args.workers)
    view = View(args.snippet_chars, args.page_chars)
    app = create_env_app(lambda: SearchEnv(retriever, searches, args.topk, view), config, on_stop=searches.close)
    add_retrieve(app, retriever, searches, args.topk, args.retrieve_timeout)
    return app


def main() -> None:
    """Start the server."""
    args = parser().parse_args()
    if not 1 <= args.topk <= MAX_TOPK:
        sys.exit(
            f"{NAME} does not start: --topk {args.topk} retrieves nothing, or everything."
            f" Use 1 or more, up to {MAX_TOPK}."
        )
    if args.snippet_chars < 0 or args.page_chars < 1:
        sys.exit(
            f"{NAME} does not start: --snippet-chars {args.snippet_chars}, --page-chars {args.page_chars} show nothing."
            " Use 0 or more, and 1 or more."
        )
    if not args.retrieve_timeout > 0:
        sys.exit(
            f"{NAME} does not start: --retrieve-timeout {args.retrieve_timeout:g} leaves no time to search."
            " Use more than 0."
        )
    try:
        # before the copies are started: they only map the index that is built here
        retriever = make_retriever(args.corpus, args.index, args.dense)
    except TirError as e:
        sys.exit(f"{NAME} does not start: {e}")
    run_copies(args)
    print(f"search: {len(retriever)} passages of {args.corpus}", file=sys.stderr)
    serve(create_search_app(retriever, args), args)


if __name__ == "__main__":
    main()
