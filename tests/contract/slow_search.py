"""python -m tests.contract.slow_search: the search server, except that the query "slow" takes a second and a half, and
"endless" ends when nobody waits."""

from __future__ import annotations

import json
import time
from pathlib import Path

from env_servers.launch import serve
from env_servers.search.__main__ import create_search_app, make_retriever, parser
from env_servers.search.searches import never

NUMBERS = 40


def write_corpus(directory: Path) -> str:
    """Path of a JSONL file with the passages "number 0", "number 1", ..., each titled by its number."""
    path = directory / "corpus.jsonl"
    path.write_text(
        "".join(
            json.dumps({"id": str(i), "contents": f'"{i}"\nThis is number {i} of them.'}) + "\n" for i in range(NUMBERS)
        )
    )
    return str(path)


class Slow:
    def __init__(self, retriever) -> None:
        self.retriever = retriever

    def search(self, query, k, stop=never):
        if query == "slow":
            time.sleep(1.5)
        while query == "endless" and not stop():
            time.sleep(0.01)
        return self.retriever.search(query, k, stop)

    def document(self, number):
        return self.retriever.document(number)

    def __len__(self):
        return len(self.retriever)


if __name__ == "__main__":
    args = parser().parse_args()
    serve(create_search_app(Slow(make_retriever(args.corpus, args.index, args.dense)), args), args)
